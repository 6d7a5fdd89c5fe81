"""Draw error against step: minicl evaluate RUN --checkpoints all --json | python plots/steps.py - -o steps.png"""

from minicl import draw

draw.script(draw.steps, __doc__)

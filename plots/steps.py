"""Draw error against step: minicl evaluate RUN --checkpoints all --json > e.json; plots/steps.py e.json -o s.png"""

from minicl import draw

draw.script(draw.steps, __doc__)

"""Draw error against step: minicl evaluate RUN… --training --json | python plots/training.py - -o training.png"""

from minicl import draw

draw.script(draw.training, __doc__)

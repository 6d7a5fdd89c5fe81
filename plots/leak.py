"""Draw how labels reach their own predictions: minicl audit --json | python plots/leak.py - -o leak.png"""

from minicl import draw, draw_masks

draw.script(draw_masks.leak, __doc__)

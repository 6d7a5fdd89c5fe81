"""Draw masks side by side: minicl audit --json | python plots/masks.py - -o masks.png"""

from minicl import draw, draw_masks

draw.script(draw_masks.masks, __doc__)

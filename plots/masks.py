"""Draw masks side by side: minicl audit --json | python plots/masks.py - -o masks.png"""

from minicl import draw

draw.script(draw.masks, __doc__)

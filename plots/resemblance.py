"""Draw layers against optimisers: minicl theory --run RUN --json | python plots/resemblance.py - -o r.png"""

from minicl import draw, draw_layers

draw.script(draw_layers.resemblance, __doc__)

"""Draw the hand-set constructions: minicl theory --json > t.json; python plots/theory.py t.json -o theory.png"""

from minicl import draw, draw_layers

draw.script(draw_layers.theory, __doc__)

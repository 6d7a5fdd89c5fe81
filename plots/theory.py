"""Draw the hand-set constructions: minicl theory --json > t.json; python plots/theory.py t.json -o theory.png"""

from minicl import draw

draw.script(draw.theory, __doc__)

"""Draw layers against optimisers: minicl theory --run RUN --json | python plots/resemblance.py - -o r.png"""

from minicl import draw

draw.script(draw.resemblance, __doc__)

"""Draw layers against optimisers: minicl theory --run RUN --json > r.json; plots/resemblance.py r.json -o r.png"""

from minicl import draw

draw.script(draw.resemblance, __doc__)

"""Draw error against examples: minicl evaluate RUN… --json > e.json; python plots/curves.py e.json -o curves.png"""

from minicl import draw

draw.script(draw.curves, __doc__)

"""Draw order sensitivity: minicl evaluate RUN… --order --json > o.json; python plots/order.py o.json -o order.png"""

from minicl import draw

draw.script(draw.order, __doc__)

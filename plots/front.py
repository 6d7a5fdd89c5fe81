"""Draw masks beside errors: minicl audit --json > m.json; minicl evaluate RUN… --baselines none --json > e.json;
python plots/front.py m.json e.json -o front.png"""

from minicl import draw, draw_masks

draw.script(draw_masks.front, __doc__)

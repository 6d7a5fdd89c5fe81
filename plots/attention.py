"""Draw attention: minicl probe RUN --attention a.png --json > a.json; python plots/attention.py a.json -o a.pdf"""

from minicl import draw, draw_masks

draw.script(draw_masks.attention, __doc__)

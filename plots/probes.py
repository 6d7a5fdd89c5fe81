"""Draw linear probes: minicl probe RUN --json > p.json; python plots/probes.py p.json -o probes.png"""

from minicl import draw, draw_layers

draw.script(draw_layers.probes, __doc__)

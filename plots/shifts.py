"""Draw a grid of shifts: minicl evaluate RUN… --shifts all --json > e.json; python plots/shifts.py e.json -o s.png"""

from minicl import draw

draw.script(draw.shifts, __doc__)

"""Draw one panel per shift: minicl evaluate RUN… --shifts all --json | python plots/shifts.py - -o s.png"""

from minicl import draw

draw.script(draw.shifts, __doc__)

"""Draw one prompt: minicl evaluate RUN… --prompt-plot p.png --json > p.json; python plots/prompt.py p.json -o p.pdf"""

from minicl import draw

draw.script(draw.prompt, __doc__)

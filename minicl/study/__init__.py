"""`minicl study`: every synthetic figure of the paper, with seeds, controls and verdicts.

plan.py: how large everything is, and which runs there are. figures.py: what each figure shows. numbers.py: what is
measured on a run, and the files that keep it. pictures.py: how it is drawn. claims.py: what the paper says, and whether
it holds. run.py: the command.
"""

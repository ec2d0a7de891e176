"""Questions to one GPU that no command of the harness asks yet: each case predicts, then measures.

python -m research.probes NAME --out FOLDER [--cases A,B] [--tiny]

NAME is a module of this package with `cases(tiny)`. A case runs in a process of its own, and its
answer, FOLDER/NAME/CASE.json, is written as soon as it exists; what has an answer is not run again.
"""

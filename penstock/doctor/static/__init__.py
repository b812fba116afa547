"""Reading a script before it runs.

Covers: its syntax tree, names and constants (script.py), the data it names (data.py), findings (scan.py).
Does not cover: running it (rehearse/), changing it (patch/).
"""

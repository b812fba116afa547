"""Code that runs inside of the supervised script's own Python.

Covers: a start-up file that Python imports by itself, and the small package beside it.
Does not cover: anything of penstock: the script's Python may be another one, without penstock, so only the standard
library is used here.
"""

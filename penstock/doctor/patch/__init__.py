"""Changing a script so that a cause is gone.

Covers: edits as data (edits.py), applying them with LibCST so that comments and formatting stay (apply.py), diffs.
Does not cover: which edits a cause needs (causes/).
"""

"""Causes: what the script keeps longer than it needs it.

Covers: one cause per file.
Does not cover: the other rooms.
"""

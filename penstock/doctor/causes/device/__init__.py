"""Causes: accelerators, known by their error texts.

Covers: one cause per file.
Does not cover: the other rooms.
"""

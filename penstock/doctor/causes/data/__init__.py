"""Causes: how data is loaded, joined and expanded.

Covers: one cause per file.
Does not cover: the other rooms.
"""

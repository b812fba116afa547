"""Causes: processes beside the main one.

Covers: one cause per file.
Does not cover: the other rooms.
"""

"""Causes: the training step, validation and saving.

Covers: one cause per file.
Does not cover: the other rooms.
"""

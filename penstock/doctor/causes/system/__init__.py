"""Causes: the allocator, the kernel and the machine.

Covers: one cause per file.
Does not cover: the other rooms.
"""

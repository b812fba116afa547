"""What is watched in each library: one file each.

Covers: a table per file, from module name to the function that hooks it once it is imported.
Does not cover: wrapping functions (hooks.py), being there when a module is imported (importing.py).
"""

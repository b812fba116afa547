"""A function out of a user's Python file.

Covers: `module.py:build`, under the name that this room uses.
Does not cover: loading it (core/user_code.py), what is done with the function.
"""

from __future__ import annotations

from penstock.core.user_code import load_function

__all__ = ["load_function"]

"""The levels of instructions that this processor has: tests of kernels run at each, and want the same bits."""

from __future__ import annotations

from penstock.native.library import library

LEVELS = library().levels

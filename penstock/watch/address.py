"""Where the live page is served by default.

Covers: two constants, so that the command's help need not load the page.
Does not cover: serving (live.py).
"""

from __future__ import annotations

HOST = "127.0.0.1"
PORT = 7337

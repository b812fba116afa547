"""Holds back what frameworks print while they are loaded.

Covers: stderr of native code, which Python's own streams do not see.
Does not cover: what is printed later, while a model runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what native code prints while it is loaded; it is shown if loading fails.

    TensorFlow writes to stderr whatever its log level.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(shown, said.read())
            raise
        finally:
            os.dup2(shown, 2)
            os.close(shown)

"""The folder that keeps penstock's own files between runs.

Covers: choosing one that can be written and that is the user's own.
Does not cover: what is kept there (sources/storage/index_folder.py, engine/rowstore).
"""

from __future__ import annotations

import os
import tempfile


def user_folder() -> str:
    """$PENSTOCK_CACHE, else the user's cache folder, else one in the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    named = os.environ.get("PENSTOCK_CACHE")
    own = f"penstock-{os.getuid()}"
    for folder in (named, os.path.join(home, "penstock"), os.path.join(tempfile.gettempdir(), own)):
        if folder and _usable(folder):
            return folder
    return tempfile.mkdtemp(prefix=f"{own}-")


def _usable(folder: str) -> bool:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # Another user's folder under our name in a shared temporary folder could feed us a false index.
        return os.stat(folder).st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False

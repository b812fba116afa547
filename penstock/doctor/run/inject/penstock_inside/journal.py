"""Lines of JSON that are on disk when the call returns.

Covers: one append-only file per kind and process, written with one system call a line.
Does not cover: flushing to the medium: the kernel keeps what a killed process wrote.
"""

import json
import os
import sys
import time

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OTHERS = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep, "<frozen", _HERE)


class Journal:
    """Writes records of one kind for this process."""

    def __init__(self, folder: str, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self._pid, self._file = -1, -1

    def write(self, **values: object) -> None:
        if self._pid != os.getpid():  # first line, or a forked child
            path = os.path.join(self.folder, "%s.%d.jsonl" % (self.kind, os.getpid()))
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._pid = os.getpid()
        record = {"t": time.time(), "pid": self._pid}
        record.update(values)
        os.write(self._file, (json.dumps(record, default=str) + "\n").encode())


def is_users(filename: str) -> bool:
    """Whether a file belongs to the script rather than to Python, a package or us."""
    return not (filename.startswith(sys.prefix + os.sep + "lib") or any(part in filename for part in _OTHERS)) and (
        not filename.startswith(_STANDARD)
    )


_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def user_place(depth: int = 2) -> str:
    """The line of the script that led here, as file:line; empty if there is none."""
    frame = sys._getframe(depth)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""

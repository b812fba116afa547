"""The script's stderr, shown as always and kept.

Covers: a pipe, or a terminal where ours is one (progress bars look at that), and the last part of it on disk.
Does not cover: stdout, which is not touched.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import termios
import threading
from pathlib import Path

from penstock.doctor.evidence.folder import STDERR, STDERR_NBYTES, Ring


class Stderr:
    """`write_fd` is for the script; what arrives is passed on to our stderr and kept in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.write_fd = self._read_fd = -1
        self._thread: threading.Thread | None = None

    def open(self) -> int:
        """Make the channel and begin to pass on what comes."""
        if os.isatty(2):
            self._read_fd, self.write_fd = pty.openpty()
            fcntl.ioctl(self.write_fd, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8))
            modes = termios.tcgetattr(self.write_fd)
            modes[1] &= ~termios.OPOST  # our own terminal turns line ends into two characters already
            termios.tcsetattr(self.write_fd, termios.TCSANOW, modes)
        else:
            self._read_fd, self.write_fd = os.pipe()
        self._thread = threading.Thread(target=self._pump, daemon=True, name="penstock-stderr")
        self._thread.start()
        return self.write_fd

    def close(self) -> None:
        """Wait until everything has arrived; a process that kept the channel open does not hold us up."""
        os.close(self.write_fd)
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _pump(self) -> None:
        kept = Ring(self._folder, STDERR, STDERR_NBYTES)
        while True:
            try:
                data = os.read(self._read_fd, 65536)
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal's way to say that all writers are gone
                    break
                raise
            if not data:
                break
            kept.write(data)
            try:
                os.write(2, data)
            except OSError:  # our own stderr is closed: the script need not know
                continue
        kept.close()
        os.close(self._read_fd)

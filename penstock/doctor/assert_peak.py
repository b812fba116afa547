"""A test's bound on memory, measured in a process of its own.

Covers: running a function in a fresh child, its peak above what the imports took, an error that says by how much.
Does not cover: measuring code in this process (watch_memory.py), whose earlier garbage would be counted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.sizes import Size, parse_size, size
from penstock.memory.cgroups import read_counters
from penstock.memory.jail import limited_group

ROOM = 256_000_000
"""The child may go so far above the bound before it is stopped: its interpreter and imports are not counted."""
_CHILD = "import sys; from penstock.doctor.assert_peak import child; sys.exit(child(sys.argv[1]))"


def assert_peak_below(limit: Size, function: Callable[[], Any], *, timeout_s: float = 300.0) -> int:
    """Run a function in a fresh process and raise AssertionError if it took more than `limit` beyond its imports.

    Returns the bytes that it took. The function must be picklable by cloudpickle; what it prints is shown.

    >>> taken = assert_peak_below("200MB", lambda: sum(range(1000)))
    """
    import cloudpickle

    bound = parse_size(limit)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function.pickle"
        path.write_bytes(cloudpickle.dumps(function))
        with limited_group(bound + 4 * ROOM) as group:
            process = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], start_new_session=True)
            if group is not None:
                (group.path / "cgroup.procs").write_text(str(process.pid))
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            counters = read_counters(group) if group is not None else None
        if counters is not None and counters.oom_kills:
            raise AssertionError(f"the function was killed above {size(bound + 4 * ROOM)}; the bound is {size(bound)}")
        if code != 0:
            raise PenstockError(f"The function failed in its process, with exit code {code}; its traceback is above.")
        taken = int((path.parent / "taken").read_text())
    if taken > bound:
        raise AssertionError(f"the function took {size(taken)}, {size(taken - bound)} more than {size(bound)}")
    return taken


def child(path: str) -> int:
    """In the child: load the function (its imports are not counted), then measure its call."""
    import cloudpickle

    from penstock.doctor.watch_memory import watch_memory

    function = cloudpickle.loads(Path(path).read_bytes())
    with contextlib.suppress(OSError):  # the high-water mark begins anew: that of the imports would hide short peaks
        Path("/proc/self/clear_refs").write_text("5")
    with watch_memory() as watched:
        function()
    Path(path).with_name("taken").write_text(str(max(0, watched.peak - watched.before)))
    return 0

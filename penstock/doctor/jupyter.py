"""`%%penstock`: a guarded notebook cell.

Covers: `%load_ext penstock.doctor.jupyter`, then `%%penstock [4GB]` at the top of a cell: its peak is shown, and the
cell is stopped before the kernel would be killed.
Does not cover: scripts (`penstock run`).
"""

from __future__ import annotations

from typing import Any

from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.core.sizes import parse_size
from penstock.doctor.watch_memory import watch_memory
from penstock.memory.limits import find_limit

SHARE = 0.9
"""Without a size the cell may take so much of what the machine gives."""


def guarded_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell; stop it at the limit, with a sentence instead of a dead kernel."""
    try:
        limit = parse_size(line.strip()) if line.strip() else int(SHARE * find_limit().nbytes)
        with watch_memory(stop_at=limit) as watched:
            result = shell.run_cell(cell)
    except (OutOfMemory, InvalidInput) as error:
        print(f"penstock: {error}")
        return
    stopped = isinstance(result.error_in_exec, OutOfMemory)
    print(f"penstock: {'stopped; ' if stopped else ''}{watched}")


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext penstock.doctor.jupyter`."""
    shell.register_magic_function(
        lambda line, cell: guarded_cell(shell, line, cell), magic_kind="cell", magic_name="penstock"
    )

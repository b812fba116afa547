"""A word to the user when a parser is compiled that a read has to wait for.

Covers: one line, once a process, when Numba really compiles one of penstock's kernels instead of loading it.
Does not cover: kernels that are compiled in the background (sources/csv_kernel.py): nobody waits for those.
"""

from __future__ import annotations

import logging

from numba.core import event

_log = logging.getLogger("penstock")


class _Notice(event.Listener):
    """Hears of every compilation in the process; only the named modules' are told."""

    def __init__(self, what: str, modules: tuple[str, ...]) -> None:
        self._what, self._modules, self._told = what, modules, False

    def on_start(self, event: event.Event) -> None:
        module = getattr(event.data["dispatcher"].py_func, "__module__", "")
        if not self._told and module in self._modules:
            self._told = True
            _log.warning("Compiling %s for this processor: once, about 15 s; later runs load it.", self._what)

    def on_end(self, event: event.Event) -> None:
        """Nothing is told at the end."""


def tell_when_compiling(what: str, *modules: str) -> None:
    """Say so when a kernel of these modules is compiled."""
    event.register("numba:compile", _Notice(what, modules))  # type: ignore[no-untyped-call]

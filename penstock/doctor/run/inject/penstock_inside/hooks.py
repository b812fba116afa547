"""Which functions of which modules are watched, and how they are wrapped.

Covers: the table of modules, wrapping functions so that a failing hook never fails the script, counting calls by line.
Does not cover: what each hook says (libraries/).
"""

import functools
import os
import sys
import weakref

from penstock_inside.board import Board
from penstock_inside.journal import Journal, user_place


class Hooks:
    """The hooks of one process, by module name."""

    def __init__(self, board: Board, calls: Journal) -> None:
        from penstock_inside.libraries import arrays, jax, keras, tensorflow, tokenizers, torch, workers

        self.board, self.calls = board, calls
        self.table = {}  # type: dict[str, list[object]]
        self._counts = {}  # type: dict[tuple[str, str], int]
        self.steps_counted = False
        self.remembered = []  # type: list[tuple[str, object]]
        for part in (arrays, workers, torch, keras, tensorflow, jax, tokenizers):
            for module, hook in part.TABLE.items():
                self.table.setdefault(module, []).append(hook)
        if os.environ.get("PENSTOCK_REHEARSE"):
            from penstock_inside.rehearsal import table

            for module, hook in table(calls.folder).items():
                self.table[module].insert(0, hook)  # inside of the watching ones, which count what really happens

    def apply(self, name: str, module: object) -> None:
        """Hook one module that was just imported; another version of it may lack what we look for."""
        for hook in self.table.get(name, ()):
            try:
                hook(self, module)
            except Exception as error:
                self.calls.write(what="hook", where="", failed=f"{name} {type(error).__name__}: {error}")

    def remember(self, name: str, value: object) -> None:
        """Keep a weak reference to an object that may have no name in the script, for the walk over names."""
        try:
            self.remembered = [*self.remembered[-7:], (name, weakref.ref(value))]
        except TypeError:  # lists and the like take none; then it has to have a name
            return

    def note(self, what: str, where: str = "", **values: object) -> None:
        """Write down a call: the first few of each line of the script, then each power of two."""
        where = where or user_place(3)
        count = self._counts.get((what, where), 0) + 1
        self._counts[what, where] = count
        if count <= 4 or not count & (count - 1):
            self.calls.write(what=what, where=where, count=count, **values)

    def wrap(self, owner: object, name: str, before=None, after=None) -> None:
        """Replace owner.name by a function that calls `before(args, kwargs)` and `after(result, args, kwargs)`.

        What `before` returns is handed to `after` as its last argument.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args, **kwargs):
            kept = self._guarded(before, args, kwargs) if before is not None else None
            if after is None:
                return original(*args, **kwargs)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                self._guarded(after, result, args, kwargs, kept)

        setattr(owner, name, wrapped)

    def _guarded(self, hook, *args):
        try:
            return hook(*args)
        except Exception as error:  # the script's call matters, ours does not
            self.calls.write(what="hook", where="", failed=f"{type(error).__name__}: {error}")
            return None

    def saved(self, result: object, args: tuple, kwargs: dict, kept: object) -> None:
        """After a save: where the file is, if the save came to its end and was given a path as its second argument."""
        path = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filepath"))
        if sys.exc_info()[0] is None and isinstance(path, (str, os.PathLike)) and os.path.exists(path):
            self.calls.write(what="saved", where="", path=os.path.abspath(path))

    def during(self, owner: object, name: str, phase: str, slot: "int | None" = None) -> None:
        """Be in `phase` while owner.name runs, and count its calls in a slot of the board."""

        def before(args, kwargs):
            if slot is not None:
                self.board.page[slot] += 1
            return self.board.enter(phase)

        def after(result, args, kwargs, kept):
            if kept is not None:
                self.board.restore(kept)

        self.wrap(owner, name, before, after)


def file_size(path: object) -> int:
    """Bytes of a file that was named; 0 if it is no path."""
    try:
        return os.path.getsize(path) if isinstance(path, (str, os.PathLike)) else 0
    except OSError:
        return 0

"""Being there when a framework's module has just been imported.

Covers: a finder that hands every import on to the usual finders, and calls a hook after the few modules that have one.
Does not cover: what the hooks do (hooks.py).
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

from penstock_inside.board import NUMBER, PHASE, Board
from penstock_inside.hooks import Hooks

HEAVY = frozenset(("torch", "tensorflow", "keras", "jax", "transformers", "pandas", "sklearn", "lightning", "xgboost"))


class Finder(importlib.abc.MetaPathFinder):
    """First in line; says nothing about modules without a hook."""

    def __init__(self, hooks: Hooks, board: Board) -> None:
        self.hooks, self.board = hooks, board
        self._inside = set()  # type: set[str]

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.hooks.table and fullname not in HEAVY:
            return None
        if fullname in self._inside:
            return None
        self._inside.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname) if path is None else self._rest(fullname, path, target)
        finally:
            self._inside.discard(fullname)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        self._wrap(spec.loader, fullname)
        return spec

    def _rest(self, fullname, path, target):
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def _wrap(self, loader, fullname) -> None:
        original = loader.exec_module

        def exec_module(module):
            before = self.board.page[PHASE]
            if fullname in HEAVY and before == NUMBER["load"]:
                self.board.enter("import")
            try:
                original(module)
            finally:
                if fullname in HEAVY:
                    self.board.restore(before)
            self.hooks.apply(fullname, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with fixed attributes: this module stays without hooks
            return

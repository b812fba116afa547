"""Smaller models: width, pruning, quantization, distillation, each measured before and after.

Covers: the public names of the room.
Does not cover: any work.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from penstock.shrink.distill import Teacher, distill
from penstock.shrink.export import export_lite, export_onnx
from penstock.shrink.files import open_model, save_model
from penstock.shrink.masks import Schedule
from penstock.shrink.prune import Pruner, prune
from penstock.shrink.quantize import quantize
from penstock.shrink.recipe import Recipe
from penstock.shrink.report import Shrunk
from penstock.shrink.run import shrink
from penstock.shrink.score import Score, score
from penstock.shrink.search import TargetMissed
from penstock.shrink.train import Fit
from penstock.shrink.width import left_alone, remove_channels, width

__all__ = [
    "Fit",
    "Pruner",
    "Recipe",
    "Schedule",
    "Score",
    "Shrunk",
    "TargetMissed",
    "Teacher",
    "distill",
    "export_lite",
    "export_onnx",
    "left_alone",
    "open_model",
    "prune",
    "quantize",
    "remove_channels",
    "save_model",
    "score",
    "shrink",
    "width",
]


class _Room(ModuleType):
    """`ps.shrink(...)` is a call and `penstock.shrink` a package; importing the latter must not hide the former."""

    def __call__(self, *args: Any, **options: Any) -> Shrunk:
        return shrink(*args, **options)


sys.modules[__name__].__class__ = _Room

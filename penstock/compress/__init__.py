"""Smaller models: width, pruning, quantization, distillation, each measured before and after.

Covers: the public names of the room, behind `ps.shrink` and `ps.distill`.
Does not cover: any work.
"""

from penstock.compress.export import export_lite, export_onnx
from penstock.compress.files import open_model, save_model
from penstock.compress.quantize import quantize
from penstock.compress.recipe import Recipe
from penstock.compress.result.report import Shrunk
from penstock.compress.result.score import Score, score
from penstock.compress.search import TargetMissed
from penstock.compress.shrink import shrink
from penstock.compress.teacher.distill import Teacher, distill
from penstock.compress.thin.masks import Schedule
from penstock.compress.thin.prune import Pruner, prune
from penstock.compress.thin.width import left_alone, remove_channels, width
from penstock.compress.train import Fit

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

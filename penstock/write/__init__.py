"""Datasets written as shards that are ready for training."""

from penstock.write.report import WriteReport
from penstock.write.run import write

__all__ = ["WriteReport", "write"]

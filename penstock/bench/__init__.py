"""How fast a dataset can be fed, what holds it back, and what would help, measured on this machine.

Covers: `penstock bench`: measuring (measure, limits, trials), judging (verdict), showing (report, plot).
Does not cover: races against other loaders (the project's benchmarks/ folder).
"""

from penstock.bench.chain import BenchPlan
from penstock.bench.facts import Facts, Flow, Limits, SampleTrial
from penstock.bench.run import bench
from penstock.bench.verdict import Verdict, judge

__all__ = ["BenchPlan", "Facts", "Flow", "Limits", "SampleTrial", "Verdict", "bench", "judge"]

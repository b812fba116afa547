"""Workers get their own copies of arrays.

Covers: joblib.Parallel, multiprocessing.Pool.map and ProcessPoolExecutor with large arguments.
Does not cover: arrays that joblib maps from a file (NumPy arguments above 1 MB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script, argument, keyword
from penstock.doctor.verdict.facts import Clues

HANDING = re.compile(r"\.(?:map|imap\w*|starmap\w*|submit|apply_async)\(|\bParallel\(|delayed\(")
"""Lines that hand work to a pool."""
POOLS = ("multiprocessing.Pool", "multiprocessing.pool.Pool", "concurrent.futures.ProcessPoolExecutor", "?.Pool")


def live(facts: Clues) -> Sign | None:
    calls = facts.calls("joblib") + facts.calls("pool")
    lines = [item for item in facts.grown if HANDING.search(facts.code_at(item.place))]
    handed = sum(item.nbytes for item in lines)
    if calls and handed > 0.25 * facts.limit and facts.worker_share < 0.5:
        text = f"the main process grew by {size(handed)} while it handed work to {len(facts.workers)} workers"
        return Sign(0.75, (text, "arguments wait there, pickled once for each task"), lines[0].place, handed)
    grown = [high for _, high in facts.workers.values()]
    if not calls or len(grown) < 2 or facts.count("pools") > 2:
        return None
    held = int(facts.worker_share * facts.shape.peak)
    if held < 0.4 * facts.limit:
        return None
    text = f"{len(grown)} workers held {size(held)} together, up to {size(max(grown))} each"
    return Sign(0.85, (text,), calls[-1]["where"], held)


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(*POOLS):
        if keyword(call, "initargs") is not None:
            yield Found(script.place(call), "initargs are copied into every worker", near=2, sure=False)
    for call in script.calls("joblib.Parallel", "sklearn.utils.parallel.Parallel"):
        jobs = script.value(argument(call, 0, "n_jobs"))
        if jobs not in (None, 1):
            yield Found(
                script.place(call),
                f"n_jobs={jobs}: every worker gets its own copy of what is not a NumPy array",
                near=2,
                sure=False,
            )


CAUSE = Cause(
    name="joblib-copies",
    title="Every worker has its own copy of the data",
    why="Arguments are pickled to each process; lists, tables and small arrays are copied n_jobs times.",
    cure="Pass NumPy arrays (joblib maps those above 1 MB) or paths; prefer='threads' where the work releases the GIL.",
    live=live,
    script=script,
    instead="Parallel(n_jobs=..., prefer='threads')",
)

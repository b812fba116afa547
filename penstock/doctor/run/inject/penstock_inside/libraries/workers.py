"""Hooks on what starts processes: pools, joblib, torch.compile.

Covers: how many workers, from which line; the compilers of torch.compile.
Does not cover: torch's DataLoader (torch.py).
"""

from penstock_inside.board import POOLS


def _pool(name, what):
    def hook(hooks, module):
        def before(args, kwargs):
            hooks.board.page[POOLS] += 1
            workers = args[1] if len(args) > 1 else kwargs.get("processes", kwargs.get("max_workers"))
            hooks.note("pool", kind=what, workers=workers)

        hooks.wrap(getattr(module, name), "__init__", before)

    return hook


def _joblib(hooks, module):
    def before(args, kwargs):
        hooks.note("joblib", workers=getattr(args[0], "n_jobs", None))

    hooks.wrap(module.Parallel, "__call__", before)


def _compilers(hooks, module):
    def before(args, kwargs):
        hooks.note("compile.pool", workers=args[1] if len(args) > 1 else kwargs.get("nprocs"))

    hooks.wrap(module.SubprocPool, "__init__", before)


TABLE = {
    "torch._inductor.compile_worker.subproc_pool": _compilers,
    "multiprocessing.pool": _pool("Pool", "multiprocessing.Pool"),
    "concurrent.futures.process": _pool("ProcessPoolExecutor", "ProcessPoolExecutor"),
    "joblib.parallel": _joblib,
}

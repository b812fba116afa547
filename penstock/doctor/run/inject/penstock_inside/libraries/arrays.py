"""Hooks on what loads, joins and expands data: pandas, NumPy, SciPy, Matplotlib, HDF5, gradient boosting.

Covers: the bytes that go in and come out, and the line of the script.
Does not cover: arrays made by operators and C functions (stacks and holders show those).
"""

from penstock_inside.holders import weigh
from penstock_inside.hooks import file_size

WORTH_NOTING = 1 << 20


def _sized(hooks, owner, name, what):
    def after(result, args, kwargs, kept):
        nbytes, detail = weigh(result)
        if nbytes >= WORTH_NOTING or result is None:
            source = file_size(args[0] if args else None)
            hooks.note(what, nbytes=nbytes, detail=detail, file_nbytes=source, failed=result is None)

    def before(args, kwargs):
        source = file_size(args[0] if args else None)
        if source >= WORTH_NOTING:  # should it be killed inside, this is all that is left of the call
            hooks.note(what + ".begin", file_nbytes=source)

    hooks.wrap(owner, name, before, after)


def _functions(*names):
    def hook(hooks, module):
        for name, what in names:
            if hasattr(module, name):
                _sized(hooks, module, name, what)

    return hook


def _sparse(hooks, module):
    for owner in vars(module).values():
        if isinstance(owner, type) and "toarray" in vars(owner):
            _sized(hooks, owner, "toarray", "toarray")


def _pyplot(hooks, module):
    def after(result, args, kwargs, kept):
        hooks.note("figure", open=len(module.get_fignums()))

    hooks.wrap(module, "figure", None, after)


def _opened(hooks, module):
    def before(args, kwargs):
        hooks.note("h5py.File", file_nbytes=file_size(args[1] if len(args) > 1 else None))

    hooks.wrap(module.File, "__init__", before)


def _matrix(hooks, module):
    def before(args, kwargs):
        nbytes, detail = weigh(args[1] if len(args) > 1 else kwargs.get("data"))
        hooks.note("gbdt.matrix", nbytes=nbytes, detail=detail)

    for name in ("DMatrix", "QuantileDMatrix", "Dataset"):
        if hasattr(module, name):
            hooks.wrap(getattr(module, name), "__init__", before)


def _trained(hooks, module):
    hooks.during(module, "train", "train")


TABLE = {
    "pandas.io.parsers.readers": _functions(("read_csv", "read_csv"), ("read_table", "read_csv")),
    "pandas.io.parquet": _functions(("read_parquet", "read_parquet")),
    "pyarrow.parquet.core": _functions(("read_table", "read_parquet")),
    "pandas.core.reshape.concat": _functions(("concat", "concat")),
    "pandas.core.reshape.encoding": _functions(("get_dummies", "get_dummies")),
    "numpy.lib._npyio_impl": _functions(("load", "np.load"), ("loadtxt", "np.loadtxt"), ("genfromtxt", "np.loadtxt")),
    "numpy.lib.npyio": _functions(("load", "np.load"), ("loadtxt", "np.loadtxt")),
    "scipy.sparse._compressed": _sparse,
    "scipy.sparse._coo": _sparse,
    "matplotlib.pyplot": _pyplot,
    "h5py._hl.files": _opened,
    "xgboost.core": _matrix,
    "xgboost.training": _trained,
    "lightgbm.basic": _matrix,
    "lightgbm.engine": _trained,
}

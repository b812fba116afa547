"""A whole table is read into memory.

Covers: the readers of pandas, Polars, PyArrow and NumPy of data that is large beside the limit; lines of a file that
are parsed into one list.
Does not cover: tables read in chunks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.collects import collected, plain_name
from penstock.doctor.static.data import weigh_data
from penstock.doctor.static.script import Script, argument, keyword
from penstock.doctor.verdict.facts import Clues

READERS = (
    "pandas.read_csv",
    "pandas.read_table",
    "pandas.read_parquet",
    "pandas.read_json",
    "pandas.read_feather",
    "pandas.read_excel",
    "pandas.read_sql",
    "pandas.read_pickle",
    "polars.read_csv",
    "polars.read_parquet",
    "polars.read_json",
    "polars.read_ndjson",
    "pyarrow.parquet.read_table",
    "pyarrow.csv.read_csv",
    "pyarrow.feather.read_table",
    "json.load",
    "pickle.load",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "pandas.read_sql_query",
    "pandas.read_sql_table",
    "pandas.read_hdf",
    "pandas.read_orc",
    "pandas.read_fwf",
    "polars.read_database",
    "pyarrow.feather.read_feather",
    "joblib.load",
    "dill.load",
    ".fetchall",
    ".fetchdf",
    ".fetch_df",
    ".fetchnumpy",
    ".toPandas",
    ".to_pandas",
    ".readlines",
)
LIBRARIES = (
    "pandas/io/",
    "pyarrow/",
    "polars/",
    "sqlalchemy/",
    "sqlite3/",
    "json/__init__.py:load",
    "json/decoder.py",
    "/csv.py",
)
TABLES = ("pandas.DataFrame", "polars.DataFrame", "pyarrow.Table", "pyarrow.RecordBatch")
ROWS = re.compile(r"of builtins\.(tuple|dict|str|list)\b")
LIVE = ("read_csv", "read_parquet", "np.loadtxt")
LINES = ("open", "gzip.open", "bz2.open", "io.open", "codecs.open", "csv.reader", "csv.DictReader", "?.readlines")
_SMALL = 50_000_000


def live(facts: Clues) -> Sign | None:
    begun = next((call for what in LIVE if (call := facts.unfinished(what))), None)
    if begun is not None and facts.died and begun["file_nbytes"] > 0.1 * facts.limit:
        nbytes = int(begun["file_nbytes"])
        text = f"it died while it read a table of {size(nbytes)} on disk"
        return Sign(0.85, (text,), begun["where"], nbytes)
    calls = [call for what in LIVE for call in facts.calls(what)]
    nbytes = sum(int(call["nbytes"]) for call in calls)
    if not calls or nbytes < 0.25 * facts.limit:
        return _read_otherwise(facts)
    largest = max(calls, key=lambda call: int(call["nbytes"]))
    text = f"{largest['what']} gave a table of {size(int(largest['nbytes']))} {largest['detail']}"
    return Sign(0.4 + 0.4 * min(1.0, nbytes / (0.6 * facts.limit)), (text,), largest["where"], nbytes)


def _read_otherwise(facts: Clues) -> Sign | None:
    """No reader that is watched: growth inside of a library of tables, or a name that holds rows before training."""
    score, grown = facts.library_share(*LIBRARIES)
    if score:
        return Sign(score, (f"memory grew by {size(grown)} inside of a library that reads tables",), nbytes=grown)
    held = next((n for n in facts.names if n.type in TABLES or (n.last_len > 10_000 and ROWS.search(n.detail))), None)
    if (
        held is None
        or not facts.died
        or held.last < 0.3 * facts.limit
        or facts.count("step")
        or facts.worker_share > 0.4
    ):
        return None
    text = f"{held.name} ({held.type.split('.')[1]}, {size(held.last)}) was there before the first step"
    return Sign(0.35 + 0.3 * min(1.0, held.last / facts.taken), (text,), nbytes=held.last)


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(*READERS):
        if keyword(call, "chunksize") is not None or keyword(call, "nrows") is not None:
            continue
        name = script.value(argument(call, 0, "filepath_or_buffer"))
        weight = weigh_data(name, script.path.parent)
        if weight is not None and weight.memory < _SMALL:
            continue
        what = script.name(call.func).replace("pandas.", "")
        about = f" of {size(weight.disk)} takes about {size(weight.memory)} in memory" if weight else ""
        yield Found(
            script.place(call),
            f"{what}{about}: the whole table at once",
            weight.memory if weight else None,
            sure=weight is not None,
            name=_target(script, call),
        )
    yield from _lines(script)


def _target(script: Script, call: ast.AST) -> str:
    """The name that a call's result, or what is made of it on the same line, is assigned to."""
    return next((plain_name(n.targets[0]) for n in script.above(call) if isinstance(n, ast.Assign)), "")


def _lines(script: Script) -> Iterator[Found]:
    """A list with an entry for every line of a file."""
    handles: dict[str, ast.Call] = {}
    for node in ast.walk(script.tree):
        pairs = [(i.optional_vars, i.context_expr) for i in node.items] if isinstance(node, ast.With) else []
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and isinstance(value, ast.Call) and _reads_lines(script, value):
                handles[target.id] = value
    for item in collected(script):
        source = getattr(item.loop, "iter", None)
        opened = handles.get(source.id) if isinstance(source, ast.Name) else source
        if not isinstance(opened, ast.Call) or not _reads_lines(script, opened):
            continue
        path = script.value(opened.args[0]) if opened.args else None
        weight = weigh_data(path, script.path.parent)
        if weight is None or weight.memory >= _SMALL:
            text = f"{item.name or 'a list'} gets an entry for every line of a file"
            nbytes = weight.memory if weight else None
            yield Found(script.place(item.node), text, nbytes, near=1, sure=weight is not None, name=item.name)


def _reads_lines(script: Script, call: ast.Call) -> bool:
    name = script.name(call.func)
    return name in LINES or (name.startswith("?.") and name[1:] in (".open", ".readlines"))


CAUSE = Cause(
    name="whole-table-loaded",
    title="The whole table is read into memory",
    why="A table takes as much memory as it has cells, and while it is parsed up to twice that.",
    cure="Stream it: ps.read_csv(path) or ps.read_parquet(path) gives batches; or chunksize=, usecols=, float32.",
    live=live,
    script=script,
    instead="ps.read_csv(path).batch(256)",
)

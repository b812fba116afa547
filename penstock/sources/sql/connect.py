"""Databases as streams of Arrow record batches, never a whole result at once.

Covers: PostgreSQL (COPY, parsed by a kernel or by ADBC), SQLite, DuckDB; literals in SQL; telling lost connections
from mistakes.
Does not cover: what is asked for (partition.py), resuming (source.py), the COPY (copy.py).
"""

from __future__ import annotations

import datetime
import decimal
import math
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import BadData, DataError, InvalidInput, MissingExtra, NotFound
from penstock.core.secrets import redact
from penstock.core.sizes import size
from penstock.memory.giant import most_nbytes
from penstock.sources.sql.copy import PLAIN_STRINGS, CopyConnection, CopyError, batches, known
from penstock.sources.sql.giant_values import duckdb_memory, too_large, with_sizes_checked
from penstock.sources.sql.types import LONG, refuse_rounded
from penstock.sources.storage import files as storage
from penstock.sources.storage.unchanged import Unchanged

BATCH_NBYTES = 2_000_000
"""What a driver may collect before it hands over a batch."""

SAMPLED_ROWS = 256
KEPT = 4
"""Idle connections kept for each database."""

_LOST = ("08", "57", "53", "40", "25P0")
_LOST_WORDS = ("connection", "terminat", "server closed", "timeout", "timed out", "could not receive", "eof detected")


class ConnectionLostError(DataError):
    """There is no connection, or it went away: asking again may help."""


class _Idle:
    """A few open connections that nobody uses now. They belong to one process and never travel."""

    def __init__(self) -> None:
        self._free: list[Any] = []
        self._process = os.getpid()
        self._lock = threading.Lock()

    @contextmanager
    def use(self, connect: Callable[[], Any]) -> Iterator[Any]:
        """A connection; kept afterwards if all went well, else closed with all idle ones, which may be as dead."""
        with self._lock:
            if self._process != os.getpid():  # a forked child: the sockets are the parent's
                self._free, self._process = [], os.getpid()
            connection = self._free.pop() if self._free else None
        connection = connect() if connection is None else connection
        try:
            yield connection
        except BaseException:  # also a reader that stops in the middle: what it left unread must not be met again
            connection.close()
            self.close()
            raise
        with self._lock:
            self._free.append(connection)
            spare = self._free[:-KEPT]
            del self._free[:-KEPT]
        for old in spare:
            old.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            free, self._free = self._free, []
        for connection in free if self._process == os.getpid() else ():
            connection.close()

    def __reduce__(self) -> tuple[type[_Idle], tuple[()]]:
        return _Idle, ()

    def __del__(self) -> None:
        self.close()


class Database:
    """One database, by URI. Nothing is opened until a query is run; passwords never leave this class."""

    def __init__(self, uri: str) -> None:
        scheme = uri.split(":", 1)[0].lower() if isinstance(uri, str) else ""
        kinds = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite", "duckdb": "duckdb"}
        if scheme not in kinds or "://" not in uri:
            raise InvalidInput(
                f"A database URI starts with postgresql://, sqlite:/// or duckdb:///, unlike {redact(str(uri))!r}."
            )
        self._uri, self.kind = uri, kinds[scheme]
        self._idle, self._copies = _Idle(), _Idle()
        self._unchanged = Unchanged()

    @property
    def name(self) -> str:
        """The URI without its password."""
        return redact(self._uri)

    def scrub(self, text: str) -> str:
        """A driver's message on one line, without the password."""
        for secret in _secrets(self._uri):
            text = text.replace(secret, "***")
        return " ".join(text.split())

    def stream(self, query: str, row_nbytes: int = 256) -> Iterator[pa.RecordBatch]:
        """The rows of a query. Raises `ConnectionLostError` when the connection breaks and `DataError` for mistakes."""
        run = {"postgresql": self._postgresql, "sqlite": self._sqlite, "duckdb": self._duckdb}[self.kind]
        return run(query, max(1, min(65_536, BATCH_NBYTES // max(1, row_nbytes))))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a small result."""
        found: list[tuple[Any, ...]] = []
        for batch in self.stream(query):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return found

    def _postgresql(self, query: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Through our kernel where it knows all types, else through ADBC."""
        names: list[str] = []
        try:
            with self._copies.use(lambda: CopyConnection(self._uri)) as connection:
                columns = connection.describe(query)
                names = [column.name for column in columns]
                query = with_sizes_checked(query, [column.oid for column in columns], names)
                if known(columns):
                    yield from batches(connection.rows(query), columns, rows, BATCH_NBYTES)
                    return
        except CopyError as error:
            raise self._explained(error, names) from None
        yield from self._adbc(query, names)

    def _adbc(self, query: str, names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        try:
            import adbc_driver_manager
            import adbc_driver_postgresql.dbapi as driver
        except ImportError as error:
            raise MissingExtra(what="read_sql on PostgreSQL", extra="sql") from error
        options = {"adbc.postgresql.batch_size_hint_bytes": str(BATCH_NBYTES)}
        try:
            # Connecting costs as much as thousands of rows, so that connections are kept for the next range.
            with self._idle.use(lambda: _with_plain_strings(driver.connect(self._uri, autocommit=True))) as connection:
                with connection.cursor(adbc_stmt_kwargs=options) as cursor:
                    cursor.execute(f"{query}\n")  # a closing bracket is put behind it, which a comment would hide
                    with cursor.fetch_record_batch() as reader:
                        yield from _batches(reader)
        except (adbc_driver_manager.Error, OSError, pa.ArrowException) as error:
            raise self._explained(error, names) from None  # the driver's own error may quote the URI

    def _duckdb(self, query: str, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            import duckdb
        except ImportError as error:
            raise MissingExtra(what="read_sql on DuckDB", extra="sql") from error
        path = self._path()
        self._unchanged.check(0, path, may_be_written=True)
        try:
            with _duckdb_connection(duckdb, path) as connection:
                # A relation streams; execute() would hold the whole result first (870 MB against 310 MB, measured).
                result = connection.sql(query)
                name = "to_arrow_reader" if hasattr(result, "to_arrow_reader") else "fetch_arrow_reader"
                yield from _batches(getattr(result, name)(rows))
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise self._explained(error) from error

    def _sqlite(self, query: str, rows: int) -> Iterator[pa.RecordBatch]:
        # Python's own driver: ADBC takes a column's type from the first batch, where it may be all NULL.
        import sqlite3

        try:
            path = self._path()
            self._unchanged.check(0, path, may_be_written=True)
            _refuse_cut(path)
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(most_nbytes(), 2**31 - 1))
                cursor = connection.execute(query)
                names = [column[0] for column in cursor.description or ()]
                schema: pa.Schema | None = None
                while values := cursor.fetchmany(rows if schema else max(rows, SAMPLED_ROWS)):
                    columns = list(zip(*values, strict=True))
                    if schema is None:
                        schema = pa.schema([(n, _sqlite_type(c)) for n, c in zip(names, columns, strict=True)])
                    made = [_sqlite_batch(columns, schema, self.name)]
                    del values, columns  # a Python object a value, which nobody needs while this waits
                    yield made.pop()
                if schema is None:
                    yield pa.RecordBatch.from_pylist([], pa.schema([(n, pa.string()) for n in names]))
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _path(self) -> str:
        path = unquote(self._uri.split("://", 1)[1])
        path = path.removeprefix("/")  # sqlite:////abs/x and sqlite:///rel/x, as SQLAlchemy has it
        if not os.path.exists(path) and os.path.exists("/" + path):
            path = "/" + path
        if not os.path.isfile(path):
            raise NotFound(f"There is no database file at {self.name}.")
        return path

    def _explained(self, error: BaseException, names: Sequence[str] = ()) -> Exception:
        text = self.scrub(str(error))
        refused = too_large(text, self.name, names)
        if refused is not None:
            return refused
        state = str(getattr(error, "sqlstate", None) or _sqlstate(text))
        lost = state.startswith(_LOST) if state else any(word in text.lower() for word in _LOST_WORDS)
        if lost and self.kind == "postgresql":
            return ConnectionLostError(f"the database cannot be reached: {text}")
        if "string or blob too big" in text:
            text += f": one value may have {size(most_nbytes())} under the memory limit in force."
        if "Out of Memory" in text:
            text = (
                f"{text.partition(' Possible')[0]}. Under the memory limit in force DuckDB has {duckdb_memory()}, for "
                f"2,048 neighbouring values and for sorting: use more partitions=, leave large values out, or raise "
                f"the limit."
            )
        return DataError(f"{self.name}: the query failed: {text}")


def _duckdb_connection(duckdb: Any, path: str) -> Any:
    """Our own settings, or those of the caller's who has the file open in this process already: DuckDB has one."""
    settings = {"threads": 1, "memory_limit": duckdb_memory()}  # our scheduler owns the cores and the memory
    try:
        return duckdb.connect(path, read_only=True, config=settings)
    except duckdb.ConnectionException as error:
        if "different configuration" not in str(error):
            raise
    try:
        return duckdb.connect(path)
    except duckdb.ConnectionException:
        return duckdb.connect(path, read_only=True)


def _with_plain_strings(connection: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(PLAIN_STRINGS)
    return connection


def _sqlstate(text: str) -> str:
    found = re.search(r"SQLSTATE: (\w{5})", text)
    return found[1] if found else ""


def _parts(uri: str) -> tuple[str, str, str, str]:
    """Scheme, user part, place and options; a password may hold any sign, so the last @ ends it."""
    scheme, _, rest = uri.partition("://")
    before, _, options = rest.partition("?")
    user, at, place = before.rpartition("@")
    return scheme, user + at, place, options


def _secrets(uri: str) -> list[str]:
    _, user, _, options = _parts(uri)
    found = re.findall(r"(?i)password=([^&]*)", options)
    if ":" in user:
        found.append(user.split(":", 1)[1][:-1])
    return sorted({secret for raw in found for secret in (raw, unquote(raw)) if secret}, key=len, reverse=True)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Batches of a reader; an empty result is one empty batch, for its columns' sake."""
    count = 0
    for count, batch in enumerate(reader, 1):  # noqa: B007
        yield _plain(batch)
    if not count:
        yield _plain(pa.RecordBatch.from_pylist([], reader.schema))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """PostgreSQL's numeric comes as text in an opaque type: floats are what training wants."""
    for i, field in enumerate(batch.schema):
        kind = field.type
        if isinstance(kind, pa.OpaqueType) and kind.type_name == "numeric":
            text = batch.column(i).storage
            for value in text.filter(pc.match_substring_regex(text, LONG)).to_pylist():
                refuse_rounded(field.name, decimal.Decimal(value))
            batch = batch.set_column(i, field.name, text.cast(pa.float64()))
    # Notes of the driver's: the other ways of reading the same rows have none.
    return pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)


def _refuse_cut(path: str) -> None:
    """SQLite reads what is missing of the last page as zeros, and rows in it come out wrong without an error."""
    nbytes, head = storage.file_size(path), storage.read_range(path, 0, 18)
    if head.startswith(b"SQLite format 3\0"):
        page = int.from_bytes(head[16:18], "big")
        page = 65536 if page == 1 else page
        if page and nbytes % page:
            raise BadData(path, f"the database is cut short: {nbytes} bytes are no whole number of pages of {page}")


def _sqlite_type(values: tuple[Any, ...]) -> pa.DataType:
    kinds = {type(v) for v in values} - {type(None)}
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.binary() if kinds == {bytes} else pa.string()


def _sqlite_batch(columns: list[tuple[Any, ...]], schema: pa.Schema, name: str) -> pa.RecordBatch:
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise BadData(
                name, f"column {field.name!r} is not {field.type} throughout: {error}; CAST it in the query"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def identifier(name: str) -> str:
    """A column name, quoted."""
    return '"' + name.replace('"', '""') + '"'


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def literal(value: Any) -> str:
    """A key as SQL text; quoted literals take the type of the column they are compared with."""
    if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal, str, bytes, datetime.date,
                                                         datetime.time, uuid.UUID)):  # fmt: skip
        raise InvalidInput(f"partition_on needs a column of numbers, text, dates or times; {value!r} is none.")
    if isinstance(value, (int, decimal.Decimal)):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"'{_NOT_FINITE[str(value)]}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = value.isoformat(" ") if isinstance(value, datetime.datetime) else str(value)
    if "\0" in text:
        raise InvalidInput(f"The key {text[:60]!r} holds a NUL, which SQL text cannot. Partition on another column.")
    return "'" + text.replace("'", "''") + "'"

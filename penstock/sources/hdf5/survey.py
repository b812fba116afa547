"""What an HDF5 file holds, found out once: names, shapes, dtypes, how rows are stored.

Covers: opening files (local and remote), choosing datasets, facts about each, clear errors for files that are not HDF5.
Does not cover: reading rows (chunks.py), grouping them into units (source.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from penstock.core.errors import BadData, InvalidInput, MissingExtra, NotFound, SchemaChanged
from penstock.core.schema import OBJECT, Field
from penstock.sources.hdf5.compound import VALUE, records_inside
from penstock.sources.hdf5.heap import RECORD
from penstock.sources.hdf5.nested import ROW_NBYTES, field_of, inner_of, is_known, is_nested, item_nbytes
from penstock.sources.storage import files as storage

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DEFLATE, SHUFFLE = 1, 2
Storage = Literal["contiguous", "chunked", "packed", "library"]
"""contiguous: one run of rows; chunked: chunks of whole rows, unfiltered; packed: chunks that we assemble and inflate
ourselves; library: whatever only the HDF5 library can read (text, compact or virtual layouts, other filters)."""


@dataclass(frozen=True)
class Dataset5:
    """Facts about one dataset in one file."""

    name: str
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    raw: np.dtype[Any]
    storage: Storage
    chunk: tuple[int, ...] | None
    filters: tuple[int, ...]
    text: bool
    value_nbytes: int
    fill: bytes
    offset: int
    """Where the rows begin that are one run; 0 for other storages."""
    member: tuple[str, ...] = ()
    """The field of a compound type that this is, from the outside in."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @functools.cached_property
    def row_nbytes(self) -> int:
        """Decoded bytes of one row (estimated from a few values where lengths differ)."""
        count = math.prod(self.shape[1:])
        return count * (self.value_nbytes if self.stored == OBJECT else self.stored.itemsize)

    @property
    def stride(self) -> int:
        """Bytes of one row as the file holds it; for values of open length, those of its heap records."""
        return math.prod(self.shape[1:]) * self.raw.itemsize

    @property
    def in_heap(self) -> bool:
        """Whether rows are records that point into the heap."""
        return self.stored == OBJECT and self.storage != "library"

    @property
    def item(self) -> int:
        """Bytes of one element of a value of open length."""
        return 1 if self.text else item_nbytes(self.stored)

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of one stored chunk, 0 where there are none."""
        return 0 if self.chunk is None else math.prod(self.chunk) * self.raw.itemsize

    def field(self, column: str) -> Field:
        """The column that this dataset becomes."""
        if self.text:
            return Field(column, OBJECT, self.shape[1:], text=True)
        if self.stored == OBJECT and is_nested(self.stored):
            return field_of(column, self.stored)
        if self.stored == OBJECT:
            inner = self.stored.metadata.get("vlen") if self.stored.metadata else None
            ragged = isinstance(inner, np.dtype)
            return Field(column, inner if ragged else OBJECT, (None,) if ragged else self.shape[1:])  # type: ignore[arg-type]
        if self.stored.kind == "S":
            return Field(column, OBJECT, self.shape[1:])
        return Field(column, self.stored.newbyteorder("="), self.shape[1:])


def h5py_module() -> Any:
    """The h5py package, or an error that says how to get it."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(what="read_hdf5", extra="hdf5") from error
    return h5py


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """An open h5py.File, closed afterwards; damage becomes `BadData`."""
    file, stream = open_h5(path)
    try:
        yield file
    finally:
        file.close()
        if stream is not None:
            stream.close()


def open_h5(path: str) -> tuple[Any, Any]:
    """An h5py.File and, for remote paths, the stream under it."""
    h5py = h5py_module()
    nbytes = storage.file_size(path)
    if not _signed(path, nbytes):
        raise BadData(path, f"is not an HDF5 file ({nbytes} bytes without an HDF5 signature)")
    stream = storage.open_file(path) if storage.is_remote(path) else None
    try:
        # Readers never need the lock, and many network file systems refuse it.
        if stream is None:
            return h5py.File(path, "r", locking="best-effort"), None
        return h5py.File(stream, "r"), stream
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if stream is not None:
            stream.close()
        raise BadData(path, f"cannot be opened as HDF5: {reason(error)}") from error


def _signed(path: str, nbytes: int) -> bool:
    place = 0
    while place + len(SIGNATURE) <= nbytes:
        if storage.read_range(path, place, len(SIGNATURE)) == SIGNATURE:
            return True
        place = 512 if place == 0 else place * 2  # a user block may stand before the signature
    return False


def reason(error: BaseException) -> str:
    """The library's words on one line, "truncated file" made plain."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "truncated file" in text:
        return f"the file is truncated ({text})"
    if ("filter" in text and "not registered" in text) or "can't open directory" in text:
        return f"a compression filter is missing; `import hdf5plugin` before reading may supply it ({text})"
    return text


def list_datasets(file: Any) -> list[str]:
    """Paths of all datasets with rows, in the file's order."""
    h5py = h5py_module()
    found: list[str] = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.shape:
            found.extend(f"{name}{inner}" for inner in _members(node.dtype))

    try:
        file.visititems(visit)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise BadData(file.filename, f"its HDF5 structure is damaged: {reason(error)}") from error
    return found


def _members(dtype: np.dtype[Any]) -> list[str]:
    """What to put behind a dataset's name for each of its columns: a compound type has one for each field."""
    if dtype.fields is None:
        return [""]
    return [f".{name}{inner}" for name in dtype.names or () for inner in _members(dtype.fields[name][0])]


def find_dataset(file: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """A node by its path, and the field of a compound type where the name goes on with ".field"; None if missing."""
    node, end = file.get(name), len(name)
    while node is None and "." in name[:end]:
        end = name.rindex(".", 0, end)
        node = file.get(name[:end]) if end else None
        if node is not None and getattr(getattr(node, "dtype", None), "fields", None) is None:
            node = None
    return node, tuple(name[end + 1 :].split(".")) if end < len(name) else ()


def survey(path: str, wanted: Mapping[str, str]) -> dict[str, Dataset5]:
    """Facts about the wanted datasets (column -> dataset path) of one file; all must have the same rows."""
    with opened(path) as file:
        try:
            facts = {column: _facts(path, file, name) for column, name in wanted.items()}
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, UnicodeDecodeError) as error:
            if isinstance(error, (NotFound, InvalidInput)):
                raise
            raise BadData(path, f"its HDF5 structure is damaged: {reason(error)}") from error
    lengths = {fact.name: fact.rows for fact in facts.values()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items())
        raise SchemaChanged(f"{path}: datasets differ in rows: {told}. Choose datasets of one length.")
    return facts


def _facts(path: str, file: Any, name: str) -> Dataset5:
    h5py = h5py_module()
    node, member = find_dataset(file, name)
    if node is None:
        there = list_datasets(file)
        raise NotFound(f"{path} has no dataset {name!r}. There are: {', '.join(map(repr, there)) or 'none'}.")
    if not isinstance(node, h5py.Dataset):
        inside = [f"{name}/{child}" for child in node]
        raise InvalidInput(f"{path}: {name!r} is a group. Name a dataset, such as {', '.join(map(repr, inside[:5]))}.")
    if not node.shape:
        raise InvalidInput(f"{path}: dataset {name!r} is a single value, so it has no rows.")
    stored = _member_type(path, name, node.dtype, member)
    inner_shape: tuple[int, ...] = ()
    if stored.subdtype is not None:
        stored, inner_shape = stored.subdtype
    if member and stored == OBJECT and not inner_shape:
        found = _open_inside(node, member, stored)
        if found is not None:
            return found
    if stored.kind in "VU" or (stored == OBJECT and (member or inner_shape)):
        raise InvalidInput(f"{path}: dataset {name!r} has the type {stored}, which has no array form.")
    if member or inner_shape:
        return _inside(node, name, (member, stored, inner_shape))
    text = h5py.check_string_dtype(stored) is not None
    if stored == OBJECT and not text and not (len(node.shape) == 1 and _is_listed(node.id.get_type(), stored)):
        raise InvalidInput(
            f"{path}: dataset {name!r} holds {stored}, which has no array form: references, or lists of such."
        )
    filters = _filters(node)
    raw = RECORD if stored == OBJECT else stored
    kind = _storage_of(node, filters, raw)
    if kind == "library" and stored == OBJECT and 0 not in node.shape:
        # The library loops for ever in a damaged heap, so it is never let near one.
        raise InvalidInput(
            f"{path}: dataset {name!r} has values of open length in a layout or compression that is not supported. "
            f"Store it contiguous, or chunked with gzip."
        )
    fill = bytes(raw.itemsize)
    if stored != OBJECT and kind in ("chunked", "packed"):
        fill = np.asarray(node.fillvalue, stored).tobytes()
    shape, offset = tuple(map(int, node.shape)), int(node.id.get_offset()) if kind == "contiguous" else 0
    nbytes = ROW_NBYTES if is_nested(stored) else raw.itemsize
    return Dataset5(name, shape, stored, raw, kind, node.chunks, filters, text, nbytes, fill, offset)


def _is_listed(kind: Any, stored: np.dtype[Any]) -> bool:
    """Whether values are lists of open length of numbers, text, records, or of such lists."""
    return inner_of(stored) is not None and is_known(kind, stored, _is_stored_alike)


def _member_type(path: str, name: str, dtype: np.dtype[Any], member: tuple[str, ...]) -> np.dtype[Any]:
    """The type of a field of a compound type, or the type itself."""
    for part in member:
        if dtype.fields is None or part not in dtype.fields:
            raise NotFound(
                f"{path}: dataset {name!r} has no field {part!r}. There are: {', '.join(dtype.names or ())}."
            )
        dtype = dtype.fields[part][0]
    if dtype.fields is not None:
        names = [f"{name}{inner}" for inner in _members(dtype)]
        raise InvalidInput(f"{path}: dataset {name!r} is compound. Name its fields: {', '.join(map(repr, names[:5]))}.")
    return dtype


def _inside(node: Any, name: str, asked: tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...]]) -> Dataset5:
    """A field of a compound type, or values that are small arrays: the library takes them out of their records."""
    member, stored, inner = asked
    chunk = None if node.chunks is None else (*node.chunks, *inner)
    shape = (*map(int, node.shape), *inner)
    facts = Dataset5(name, shape, stored, stored, "library", chunk, (), False, stored.itemsize, b"", 0)
    return replace(facts, name=node.name.lstrip("/"), member=member)


def _open_inside(node: Any, member: tuple[str, ...], stored: np.dtype[Any]) -> Dataset5 | None:
    """A field of text or of lists of numbers, by its heap records; None where only the library knows the way."""
    h5py = h5py_module()
    text, type_of = h5py.check_string_dtype(stored) is not None, node.id.get_type()
    for name in member:
        type_of = type_of.get_member_type(type_of.get_member_index(name.encode()))
    if not text and (len(node.shape) > 1 or not _is_listed(type_of, stored)):
        return None
    raw, filters = records_inside(node, member), _filters(node)
    if raw is None or 0 in node.shape:
        return None
    kind = _storage_of(node, filters, raw)
    if kind == "library":
        return None
    shape, offset = tuple(map(int, node.shape)), int(node.id.get_offset()) if kind == "contiguous" else 0
    name = node.name.lstrip("/")
    nbytes = ROW_NBYTES if is_nested(stored) else RECORD.itemsize
    found = Dataset5(name, shape, stored, raw, kind, node.chunks, filters, text, nbytes, bytes(raw.itemsize), offset)
    return replace(found, member=member)


def _filters(node: Any) -> tuple[int, ...]:
    plist = node.id.get_create_plist()
    return tuple(int(plist.get_filter(i)[0]) for i in range(plist.get_nfilters()))


def _storage_of(node: Any, filters: tuple[int, ...], raw: np.dtype[Any]) -> Storage:
    h5py = h5py_module()
    plist = node.id.get_create_plist()
    layout = plist.get_layout()
    if raw.kind not in "biufcSV" or 0 in node.shape or node.file.userblock_size:
        return "library"
    # The file's own layout of values must be the one we read: odd precisions, paddings or addresses need the library.
    if node.file.id.get_create_plist().get_sizes() != (8, 8):
        return "library"
    if raw != RECORD and raw.names != (VALUE,) and not _is_stored_alike(node.id.get_type(), raw):
        return "library"
    if layout == h5py.h5d.CONTIGUOUS and not plist.get_external_count() and node.id.get_offset() is not None:
        return "contiguous"
    if layout != h5py.h5d.CHUNKED or any(f not in (DEFLATE, SHUFFLE) for f in filters):
        return "library"
    if not _chunks_are_where_told(node):
        return "library"
    if not filters and node.chunks[1:] == node.shape[1:]:
        return "chunked"
    return "packed"


def _is_stored_alike(kind: Any, raw: np.dtype[Any]) -> bool:
    """Whether the file's bytes are NumPy's: no odd precision, no text that ends in spaces or at its first zero."""
    h5t = h5py_module().h5t
    if isinstance(kind, h5t.TypeEnumID):
        kind = kind.get_super()
        raw = np.dtype(np.int8) if raw.kind == "b" else raw
    if raw.kind == "V":
        return bool(kind.get_size() == raw.itemsize)
    return bool(h5t.py_create(raw) == kind)


def _chunks_are_where_told(node: Any) -> bool:
    """Whether the library tells the places of chunks rightly.

    It does not where exactly one axis may grow without end and that is not the first: files written with
    libver="latest" index such chunks with that axis turned to the front, and the library (1.14.6) forgets to turn it
    back when it is asked for places. Reading goes by another way and is right.
    """
    growing = [axis for axis, most in enumerate(node.maxshape) if most is None]
    return len(growing) != 1 or growing == [0]

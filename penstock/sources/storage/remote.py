"""Remote stores through fsspec: s3, gs, http(s), memory and every other URL that fsspec knows.

Covers: ranged reads and stamps of URLs; retrying what passes by itself.
Does not cover: local paths (files.py), listings (sources/listing/remote_walk.py), file objects
(remote_file.py), keeping remote bytes on disk (engine/cache/pages.py).

Credentials and endpoints come from the environment, as each store's own client documents it.
"""

from __future__ import annotations

import errno
import math
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from penstock.core.byte_cache import cache_of
from penstock.core.errors import DataError, InvalidInput, MissingExtra, NotFound, PenstockError

TRIES = 7
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
"""0.1 s doubled six times: a store may be away for about six seconds before a run stops."""

PARALLEL = 16
"""Ranged reads of one call in flight together: at 30 ms a request, 16 of 1 MB keep 500 MB/s busy."""

CONNECTIONS = 64
"""Connections to one store: S3 clients keep only 10 unless told, which would queue the engine's readers."""

S = TypeVar("S")
T = TypeVar("T")

_TRANSIENT_ERRNO = {
    errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED,
    errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETRESET, errno.EREMOTEIO,
}  # fmt: skip
_TRANSIENT_STATUS = {408, 425, 429}
# Named, not imported: whichever client is in use has already been imported by fsspec.
_TRANSIENT_NAMES = {
    "FSTimeoutError", "ClientPayloadError", "ClientConnectionError", "ServerDisconnectedError", "ConnectTimeoutError",
    "ReadTimeoutError", "EndpointConnectionError", "ConnectionClosedError", "HTTPClientError", "IncompleteRead",
    "IncompleteReadError", "ResponseStreamingError", "ResponseParserError",
}  # fmt: skip

_lock = threading.Lock()
_filesystems: dict[tuple[int, str], Any] = {}


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path that it calls the file by."""
    fsspec = _fsspec()
    head = url.rpartition("://")[0]
    if "::" in head:
        return cast("tuple[Any, str]", fsspec.core.url_to_fs(url))
    key = (os.getpid(), head)
    fs = _filesystems.get(key)
    if fs is None:
        fs = _connect(fsspec, url, head)
        # One async client serves all threads; other clients may not be thread safe, fsspec keeps one a thread.
        if getattr(fs, "async_impl", False):
            with _lock:
                fs = _filesystems.setdefault(key, fs)
    return fs, fs._strip_protocol(url)


def _fsspec() -> Any:
    try:
        import fsspec
        import fsspec.core
    except ImportError as error:
        raise MissingExtra(what="Reading remote paths", extra="s3") from error
    return fsspec


def _connect(fsspec: Any, url: str, scheme: str) -> Any:
    options: dict[str, Any] = {}
    if scheme in ("s3", "s3a"):
        # Retrying is done here, once: three layers of it would turn an outage into minutes of silence.
        options = {"config_kwargs": {"max_pool_connections": CONNECTIONS, "retries": {"total_max_attempts": 1}}}
    elif scheme in ("http", "https"):
        # A compressed answer would not have the offsets that were asked for.
        options = {"client_kwargs": {"headers": {"Accept-Encoding": "identity"}}}
    try:
        fs = fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise MissingExtra(what=f"Reading {scheme}:// paths", extra="s3") from error
    except ValueError as error:
        raise InvalidInput(f"{url!r}: there is no reader for {scheme}:// paths.") from error
    if scheme in ("s3", "s3a"):
        fs.retries = 1
    return fs


def close() -> None:
    """Forget the clients; the next read connects anew."""
    with _lock:
        _filesystems.clear()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _filesystems.clear()


os.register_at_fork(after_in_child=_after_fork)


def retried(url: str, call: Callable[[], T], *, sleep: Callable[[float], None] = time.sleep) -> T:
    """Call until it succeeds, at most `TRIES` times; only errors that pass by themselves are tried again."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except PenstockError:
            raise
        except Exception as error:
            if not is_transient(error):
                raise explained(url, error) from error
            if attempt == TRIES:
                raise DataError(
                    f"{url} could not be read in {TRIES} tries; the last one gave {_brief(next(_causes(error)))}. "
                    f"Check the store and the network, then resume."
                ) from error
            delay = min(FIRST_DELAY_S * 2 ** (attempt - 1), LONGEST_DELAY_S)
            # Half fixed, half random: many readers that failed together do not come back together.
            sleep(delay * (0.5 + random.random() / 2))
    raise AssertionError("unreachable")


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass by itself: timeouts, lost connections, 5xx and 'slow down' answers."""
    # Broken connections first: aiohttp hides a made-up status 400 below an answer that was cut short.
    if any(kind.__name__ in _TRANSIENT_NAMES for cause in _causes(error) for kind in type(cause).__mro__):
        return True
    for cause in _causes(error):
        status = http_status(cause)
        if status is not None:
            return (status >= 500 and status != 501) or status in _TRANSIENT_STATUS
        if isinstance(cause, (FileNotFoundError, PermissionError, IsADirectoryError)):
            return False
        if isinstance(cause, (TimeoutError, ConnectionError, EOFError)):
            return True
        if isinstance(cause, OSError) and cause.errno in _TRANSIENT_ERRNO:
            return True
    return False


def http_status(error: BaseException) -> int | None:
    """The HTTP status that an error carries, in the ways that aiohttp, botocore and gcsfs write it."""
    status: Any = getattr(error, "status", None)
    response = getattr(error, "response", None)
    if status is None and isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is None:
        status = getattr(error, "code", None)
    try:
        number = int(status)
    except (TypeError, ValueError):
        return None
    return number if 100 <= number < 600 else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    # The innermost first: it is the one that the store's client saw.
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < 10:
        chain.append(current)
        current = current.__cause__
    yield from reversed(chain)


def explained(url: str, error: BaseException) -> PenstockError:
    """Our error for one that retrying cannot mend."""
    status = next((s for s in map(http_status, _causes(error)) if s is not None), None)
    if isinstance(error, FileNotFoundError) or status == 404:
        return NotFound(f"{url} does not exist.")
    if isinstance(error, PermissionError) or status in (401, 403):
        return DataError(f"{url} cannot be read: access denied. Check the credentials in the environment.")
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return DataError(f"{url} cannot be read: no credentials were found in the environment.")
    return DataError(f"{url} cannot be read: {_brief(error)}.")


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0][:300].rstrip(".")


def info(url: str) -> dict[str, Any]:
    """What the store says about a file."""
    cache = cache_of(url)
    return _ask(url) if cache is None else cache.info(url, _ask)


def _ask(url: str) -> dict[str, Any]:
    fs, path = filesystem(url)
    return cast("dict[str, Any]", retried(url, lambda: _fresh_info(fs, path)))


def _fresh_info(fs: Any, path: str) -> Any:
    # fsspec remembers listings, but a stamp must see a file that was replaced.
    fs.invalidate_cache(path)
    return fs.info(path)


def file_size(url: str) -> int:
    """Bytes of a remote file."""
    nbytes = info(url).get("size")
    if nbytes is None:
        raise DataError(f"{url} cannot be read in ranges: its server does not tell its size.")
    return int(nbytes)


def stamp(url: str) -> str:
    """Size and the store's tag of the contents, or its time of change."""
    return _stamp(info(url))


RECENT_S = 30.0
"""A store is asked for a file's tag at most once in so many seconds: a request takes as long as reading a range."""

_asked: OrderedDict[str, tuple[float, tuple[int, str]]] = OrderedDict()
_ASKED_FILES = 4096


def recent_identity(url: str, *, fresh: bool) -> tuple[int, str]:
    """Size and tag of a file, asked for now or lately; where its bytes are kept, as they were when that began."""
    if cache_of(url) is not None:
        return _size_and_tag(info(url))
    with _lock:
        at, found = _asked.get(url, (-math.inf, (0, "")))
    now = time.monotonic()
    if fresh or now - at >= RECENT_S:
        found = _size_and_tag(_ask(url))
        with _lock:
            _asked[url] = now, found
            _asked.move_to_end(url)
            while len(_asked) > _ASKED_FILES:
                _asked.popitem(last=False)
    return found


def _size_and_tag(found: dict[str, Any]) -> tuple[int, str]:
    return int(found.get("size") or 0), _stamp(found)


def _stamp(found: dict[str, Any]) -> str:
    tags = (found.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "Last-Modified", "mtime", "created"))
    return f"{found.get('size')}-{next((str(tag) for tag in tags if tag), '')}"


def read_file(url: str, limit_nbytes: int | None = None) -> bytes:
    """All bytes of a remote file, or one more than `limit_nbytes` where it is longer than that."""

    def fetch() -> bytes:
        if limit_nbytes is not None:
            return _fetch_range(url, 0, limit_nbytes + 1)
        fs, path = filesystem(url)
        return cast(bytes, retried(url, lambda: fs.cat_file(path)))

    cache = cache_of(url)
    return fetch() if cache is None else cache.whole(url, fetch, limit_nbytes)


def read_range(url: str, offset: int, length: int) -> bytes:
    """Some bytes of a remote file; fewer where it ends before."""
    cache = cache_of(url)
    if cache is None:
        return _fetch_range(url, offset, length)
    return cache.range(url, _stamp(cache.info(url, _ask)), (offset, length), _fetch_range)


def _fetch_range(url: str, offset: int, length: int) -> bytes:
    if length == 0:
        return b""
    fs, path = filesystem(url)

    def once() -> bytes:
        try:
            data = cast(bytes, fs.cat_file(path, start=offset, end=offset + length))
        except Exception as error:
            if _past_end(error):
                return b""
            raise
        # A server that ignores ranges sends the whole file.
        return data if len(data) <= length else data[offset : offset + length]

    return retried(url, once)


def _past_end(error: BaseException) -> bool:
    return any(http_status(cause) == 416 for cause in _causes(error))


def read_many(url: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """Ranges of one remote file, several in flight together unless all are kept here."""
    cache = cache_of(url)
    if cache is not None:
        tag = _stamp(cache.info(url, _ask))
        if all(cache.has_range(url, tag, span) for span in spans):
            return [read_range(url, *span) for span in spans]
    mean = sum(length for _, length in spans) // max(1, len(spans))
    return in_parallel(lambda span: read_range(url, *span), spans, most=requests_for(mean))


def requests_for(nbytes: int) -> int:
    """Requests of so many bytes that are in flight together: of short ones more, since they wait as long."""
    return min(CONNECTIONS, max(PARALLEL, PARALLEL * 250_000 // max(1, nbytes)))


def kept_files(urls: Sequence[str]) -> list[bytes | None]:
    """Whole files that are on local disk, so that nobody has to be waited for; None for the others."""
    caches = map(cache_of, urls)
    return [None if cache is None else cache.kept_whole(url) for url, cache in zip(urls, caches, strict=True)]


def in_parallel(read: Callable[[S], T], items: Sequence[S], most: int = PARALLEL) -> list[T]:
    """Call for every item, several at a time, and give the results in order."""
    if len(items) < 2:
        return [read(item) for item in items]
    # A pool for the call: its threads cost 1 ms next to a request's 30, and none is left behind.
    with ThreadPoolExecutor(min(most, len(items)), thread_name_prefix="penstock-remote") as pool:
        return list(pool.map(read, items))

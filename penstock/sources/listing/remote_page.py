"""Links of the page that a web server shows for a folder, found while the page comes in.

Covers: reading a page in pieces, links that lead to something below the folder, retrying where a page breaks off.
Does not cover: sorting and choosing names, folders below (remote_walk.py).

A page of a million links is 100 MB. Of it no more is held than `PIECE_NBYTES` and a link that is not whole yet.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urljoin

from penstock.core.errors import NotFound
from penstock.sources.storage.remote import filesystem, retried

PIECE_NBYTES = 1 << 20
LONGEST_LINK = 1 << 16
"""Characters after which something that began like a tag is taken for text."""

LONGEST_NAME = 2048
"""Characters of a name. Web servers refuse URLs that are much longer, and names are packed at one width."""

_ANCHOR = re.compile(r"""<a\s(?:[^>]*?\s)?href\s*=\s*(?:"([^"]+)"|'([^']+)')""", re.IGNORECASE)
_BARE = re.compile(r"""https?://[-a-zA-Z0-9@:%_+.~#?&/=]+""")
_NOT_OF_URLS = re.compile(r"""[^-a-zA-Z0-9@:%_+.~#?&/=]""")
_PAGES = ("text/html", "application/xhtml+xml", "")


def links(folder: str) -> Iterator[str]:
    """Names below a folder's URL as its page links them, some perhaps twice; those of folders end in "/"."""
    base = folder.rstrip("/") + "/"
    found = False
    try:
        for name in _below(base, _texts(base)):
            found = True
            yield name
    except NotFound:
        if found:
            raise
    if not found:  # a page may be known by its name without the slash only
        yield from _below(base, _texts(base.rstrip("/")))


def _below(base: str, texts: Iterable[str]) -> Iterator[str]:
    """The links that stay below `base`, relative to it. Servers may write https in pages that they send by http."""
    root = _without_scheme(base)
    for link in _found(texts):
        try:
            whole = _without_scheme(urljoin(base, html.unescape(link.strip())))
        except ValueError:  # no URL, such as "http://[x"
            continue
        name = whole[len(root) :].partition("#")[0]
        # Servers link a folder sorted otherwise as "?C=M;O=A": the same folder again.
        if whole.startswith(root) and 0 < len(name) <= LONGEST_NAME and name[0] not in "?/":
            yield name


def _without_scheme(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    return rest if scheme in ("http", "https") else scheme + colon + rest


def _found(texts: Iterable[str]) -> Iterator[str]:
    """Links in anchors, and URLs that simply stand there. What is cut at the end of a piece waits for the next."""
    held = ""
    for text in texts:
        held += text
        end = held.rfind("<")
        if end < 0 or len(held) - end > LONGEST_LINK:
            end = max(
                (match.end() for match in _NOT_OF_URLS.finditer(held, max(0, len(held) - LONGEST_LINK))), default=0
            )
        if end == 0 and len(held) > LONGEST_LINK:
            end = len(held)
        yield from _whole_links(held[:end])
        held = held[end:]
    yield from _whole_links(held)


def _whole_links(text: str) -> Iterator[str]:
    for match in _BARE.finditer(text):
        yield match.group()
    for match in _ANCHOR.finditer(text):
        yield match.group(1) or match.group(2)


def _texts(url: str) -> Iterator[str]:
    """The page in pieces."""
    reading = _Reading(url)
    try:
        while piece := retried(url, reading.piece):
            yield reading.decode(piece)
    finally:
        reading.close()


class _Reading:
    """A page on its way. After an error it is asked for anew and read on where it broke off."""

    def __init__(self, url: str) -> None:
        self._url, self._done = url, 0
        self._file: Any = None
        self._decoder: codecs.IncrementalDecoder | None = None

    def piece(self) -> bytes:
        """The next bytes; none at the end."""
        try:
            if self._file is None:
                self._open()
            data = b"" if self._file is None else self._file.read(PIECE_NBYTES)
        except BaseException:
            self.close()
            raise
        self._done += len(data)
        return bytes(data)

    def _open(self) -> None:
        fs, path = filesystem(self._url)
        # A size spares asking for one, and without blocks the answer is a stream.
        self._file = fs.open(path, "rb", block_size=0, size=1)
        kind = self._file.r.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in _PAGES:  # a file: what looks like links in it are none
            self.close()
            return
        left = self._done
        while left and (passed := self._file.read(min(left, PIECE_NBYTES))):
            left -= len(passed)

    def decode(self, data: bytes) -> str:
        """Text by the server's word for its letters; what is none is left out."""
        if self._decoder is None:
            told = str(self._file.r.charset or "utf-8") if self._file is not None else "utf-8"
            try:
                make = codecs.getincrementaldecoder(told)
            except LookupError:
                make = codecs.getincrementaldecoder("utf-8")
            self._decoder = make("ignore")
        return self._decoder.decode(data)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

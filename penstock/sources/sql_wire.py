"""A PostgreSQL connection whose bytes are read without a library in between.

Covers: the types of a query's columns, starting a COPY, and messages that are not rows (end, errors, notices).
Does not cover: connecting (psycopg does: addresses, passwords, services), rows (sources/sql_copy.py), connections that
are encrypted (their bytes are libpq's business, so ADBC reads those).

libpq hands rows over one by one, which costs more than making and sending them. So it only connects; after that the
socket is ours, and libpq is not asked again until it closes the connection.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import MissingExtra

WINDOW_NBYTES = 262_144
"""Bytes taken from the socket at a time: small enough to stay in the processor's cache until they are parsed."""

LONGEST = 1 << 30
"""PostgreSQL's largest value is 1 GB; a message that claims more is damage."""

SIGNATURE = b"PGCOPY\n\xff\r\n\0"


class WireError(Exception):
    """The server's complaint, with its code; or, without one, a connection that broke."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class Encrypted(Exception):
    """This connection cannot be read directly."""


@dataclass(frozen=True)
class WireColumn:
    """A column of a result: its name and its type's number in PostgreSQL's catalogue."""

    name: str
    oid: int


class Wire:
    """An open connection. `buffer[start:end]` has arrived and is not used yet."""

    def __init__(self, uri: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtra(what="Reading PostgreSQL directly", extra="sql") from error
        try:
            self._connection: Any = psycopg.connect(uri, autocommit=True, client_encoding="UTF8")
        except psycopg.Error as error:
            raise WireError(str(error), error.sqlstate or "08001") from None
        pgconn = self._connection.pgconn
        if pgconn.ssl_in_use:
            self._connection.close()
            raise Encrypted("the connection is encrypted")
        self._socket = socket.socket(fileno=os.dup(pgconn.socket))
        self._socket.setblocking(True)
        self.buffer = np.empty(WINDOW_NBYTES, np.uint8)
        self.start = self.end = 0

    def close(self) -> None:
        """Tell the server, and close."""
        self._connection.close()
        self._socket.close()

    def describe(self, query: str) -> list[WireColumn]:
        """The columns that a query gives, without running it."""
        text = query.encode()
        self._send(_message(b"P", b"\0" + text + b"\0\0\0") + _message(b"D", b"S\0") + _message(b"S", b""))
        found: list[WireColumn] = []
        error: WireError | None = None
        while True:
            letter, body = self._receive()
            if letter == b"T":
                found = _columns(body)
            elif letter == b"E":
                error = _error(body)
            elif letter == b"Z":
                break
        if error is not None:
            raise error
        return found

    def copy(self, query: str) -> None:
        """Start sending the rows of a query; afterwards the buffer begins with the first row's message."""
        self._send(_message(b"Q", f"copy ({query}\n) to stdout (format binary)".encode() + b"\0"))
        while True:
            self._need(5)
            letter = bytes(self.buffer[self.start : self.start + 1])
            if letter == b"d":
                break
            letter, body = self._receive()
            if letter == b"E":
                raise _error(body)
        self._need(5 + len(SIGNATURE) + 8)
        head = bytes(self.buffer[self.start : self.start + 5 + len(SIGNATURE) + 8])
        size, flags, extra = (struct.unpack_from("!I", head, i)[0] for i in (1, 5 + 11, 5 + 15))
        if head[5:16] != SIGNATURE or flags or extra or size < 4 + 19:
            raise WireError("the server's COPY stream begins in a way that is not known")
        self.start += 19
        if size == 4 + 19:
            self.start += 5
        else:  # the first row follows in the same message: give it a head of its own, over bytes that were read
            self.buffer[self.start : self.start + 5] = np.frombuffer(b"d" + struct.pack("!I", size - 19), np.uint8)

    def finish(self) -> None:
        """Read to the end of a COPY whose rows are all taken. Raises if the server had something to complain about."""
        while True:
            letter, body = self._receive()
            if letter == b"E":
                raise _error(body)
            if letter == b"Z":
                return

    def control(self) -> bool:
        """Deal with the message at hand, which is no row; whether the rows are over."""
        letter, body = self._receive()
        if letter == b"E":
            raise _error(body)
        return letter == b"c"

    def more(self) -> None:
        """Wait for more bytes of the message that is incomplete; the buffer grows if it is larger than that."""
        held = self.end - self.start
        if held >= 5:
            wanted = self.message_nbytes()
            if wanted > LONGEST:
                raise WireError(f"the server sends a message of {wanted} bytes")
            self._need(min(held + 1, wanted), room=wanted)
        else:
            self._need(held + 1)

    def message_nbytes(self) -> int:
        """The length of the message at hand."""
        return 1 + int.from_bytes(bytes(self.buffer[self.start + 1 : self.start + 5]), "big")

    def _need(self, nbytes: int, room: int = 0) -> None:
        """Have at least so many bytes at hand."""
        if self.start == self.end:
            self.start = self.end = 0
        if self.start + max(nbytes, room) > len(self.buffer) or len(self.buffer) - self.end < 65_536:
            held = self.end - self.start
            size = max(WINDOW_NBYTES, nbytes + 65_536, room + 65_536)
            target = self.buffer if len(self.buffer) == size else np.empty(size, np.uint8)
            target[:held] = self.buffer[self.start : self.end].copy()
            self.buffer, self.start, self.end = target, 0, held
        view = self.buffer.data
        while self.end - self.start < nbytes:
            try:
                got = self._socket.recv_into(view[self.end :])
            except OSError as error:
                raise WireError(f"connection broken: {error}", "08006") from None
            if not got:
                raise WireError("the server closed the connection", "08006")
            self.end += got

    def _receive(self) -> tuple[bytes, bytes]:
        """The next message, whatever it is."""
        self._need(5)
        letter = bytes(self.buffer[self.start : self.start + 1])
        size = int.from_bytes(bytes(self.buffer[self.start + 1 : self.start + 5]), "big")
        if not 4 <= size <= LONGEST:
            raise WireError(f"the server sends a message of {size} bytes")
        self._need(1 + size)
        body = bytes(self.buffer[self.start + 5 : self.start + 1 + size])
        self.start += 1 + size
        return letter, body

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise WireError(f"connection broken: {error}", "08006") from None


def _message(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack("!I", len(body) + 4) + body


def _columns(body: bytes) -> list[WireColumn]:
    """A row description: name, table, attribute, type, size, modifier and format of each column."""
    found, place = [], 2
    for _ in range(struct.unpack_from("!H", body)[0]):
        end = body.index(b"\0", place)
        found.append(WireColumn(body[place:end].decode(), struct.unpack_from("!I", body, end + 7)[0]))
        place = end + 19
    return found


def _error(body: bytes) -> WireError:
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    return WireError(f"{fields.get(b'S', 'ERROR')}: {fields.get(b'M', '')}", fields.get(b"C", ""))

"""Starting and stopping the live page.

Covers: the address with a token that is new at each start, what open pages know the
next server by, a server in a thread or in the foreground.
Does not cover: what it answers (server.py).
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.watch.address import HOST, PORT
from penstock.watch.live.run_list import RunList

if TYPE_CHECKING:
    import uvicorn

OTHER_PORTS = 20
"""If the usual port is taken, so many after it are tried."""


@dataclass
class Watching:
    """A live page that is being served. `url` holds the token; `stop()` ends it."""

    url: str
    host: str
    port: int
    token: str
    _server: uvicorn.Server = field(repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    def stop(self) -> None:
        """Stop serving; open pages notice and wait for the next server."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_watch(
    folder: str | os.PathLike[str], *, host: str = HOST, port: int | None = None, token: str | None = None
) -> Watching:
    """Serve the live page of a run, or of a folder of runs, from a thread; returns when it answers.

    The folder may be empty or not there yet. Without `port` the usual one is taken, or the next that is free.
    """
    watching, bound = _prepare(folder, host, port, token)
    thread = threading.Thread(target=watching._server.run, args=([bound],), name="penstock-watch", daemon=True)
    watching._thread = thread
    thread.start()
    while not watching._server.started and thread.is_alive():
        thread.join(0.02)
    return watching


def run_watch(folder: str | os.PathLike[str], *, host: str = HOST, port: int | None = None, tell: Any = None) -> None:
    """Serve the live page until interrupted; `tell` is called with the `Watching` once it has its address."""
    watching, bound = _prepare(folder, host, port, None)
    if tell is not None:
        tell(watching)
    try:
        watching._server.run([bound])
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        return


def lasting_token() -> str:
    """What open pages know the server by: the same from start to start, so that they find the next one, while the
    token in the printed address is new each time. Readable by no one else; where it cannot be kept, it is new too.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "penstock"
    path = folder / "watch-token"
    try:
        stored = path.read_text().strip()
        if len(stored) >= 32:
            return stored
    except OSError:
        stored = ""
    token = secrets.token_urlsafe(24)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(token)
    except OSError:
        return token
    return token


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _prepare(
    folder: str | os.PathLike[str], host: str, port: int | None, token: str | None
) -> tuple[Watching, socket.socket]:
    try:
        import uvicorn

        from penstock.watch.live.server import RunServer
    except ImportError as error:
        raise MissingExtra(what="The live page", extra="live") from error
    bound = _bind(host, port)
    actual = int(bound.getsockname()[1])
    secret = token or secrets.token_urlsafe(24)
    watch = RunServer(RunList(folder), secret, session=lasting_token(), hosts=_names(host, actual))
    config = uvicorn.Config(
        watch.app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    watch.stopping = lambda: server.should_exit  # streams end by themselves instead of being cut
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{actual}/?token={quote(secret)}"
    return Watching(url, host, actual, secret, server), bound


def _names(host: str, port: int) -> frozenset[str]:
    """What requests may call this server; a server for other machines has names that it does not know."""
    if not is_local(host):
        return frozenset()
    shown = f"[{host}]" if ":" in host else host
    return frozenset(f"{name}:{port}" for name in (shown.lower(), "localhost", "127.0.0.1", "[::1]"))


def _bind(host: str, port: int | None) -> socket.socket:
    """A socket on the port, or on the first free one after the usual."""
    tries = [port] if port is not None else [*range(PORT, PORT + OTHER_PORTS), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in tries:
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            bound.listen(128)  # who comes before the server runs waits instead of being turned away
        except OSError as error:
            bound.close()
            if port is None and number != 0:
                continue
            raise InvalidInput(
                f"The live page cannot listen on {host}:{number}: {error.strerror}. Choose another --port or --host."
            ) from error
        return bound
    raise AssertionError("unreachable")

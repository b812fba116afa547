"""A real S3 server behind a gate that counts requests, and can be slow and fail."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.sources.storage import files as storage


class Gate(ThreadingHTTPServer):
    """Passes requests on; some wait, some fail, some break off half way."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        self.target = target
        self.latency_s = 0.0
        self.failing: list[str] = []
        self.requests = 0
        self.seen: list[str] = []
        self.sent_nbytes: dict[str, int] = {}
        """Bytes of answers to GET by path, the query left out."""
        self.inside, self.most_inside = 0, 0
        self.together = 0
        self.lock = threading.Lock()
        self.enough = threading.Condition(self.lock)
        super().__init__(("127.0.0.1", 0), GateHandler)

    def next_failure(self, request: str) -> str | None:
        with self.lock:
            self.requests += 1
            self.seen.append(request)
            return self.failing.pop(0) if self.failing else None

    def wait_for_others(self) -> None:
        """Hold requests back until `together` of them are here: whether they overlap is not a matter of speed."""
        with self.enough:
            self.enough.notify_all()
            self.enough.wait_for(lambda: self.most_inside >= self.together, timeout=20)

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is part of the test."""


class GateHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gate

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def handle_any(self) -> None:
        gate = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        failure = gate.next_failure(f"{self.command} {self.path}")
        with gate.lock:
            gate.inside += 1
            gate.most_inside = max(gate.most_inside, gate.inside)
        try:
            time.sleep(gate.latency_s)
            gate.wait_for_others()
            self.answer(body, failure)
        finally:
            with gate.lock:
                gate.inside -= 1

    def answer(self, body: bytes, failure: str | None) -> None:
        if failure == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
            return
        if failure is not None and failure.isdigit():
            self.send_response(int(failure))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=20)
        upstream.request(self.command, self.path, body, dict(self.headers))
        reply = upstream.getresponse()
        data = reply.read()
        if self.command == "GET":
            with self.server.lock:
                path = self.path.split("?")[0]
                self.server.sent_nbytes[path] = self.server.sent_nbytes.get(path, 0) + len(data)
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date", "content-length"):
                self.send_header(name, value)
        length = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if failure == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)
        upstream.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any


@contextmanager
def gated() -> Iterator[Gate]:
    """Start both; the usual variables name the gate until the end."""
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    moto = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    gate = Gate(moto.get_host_and_port()[1])
    thread = threading.Thread(target=gate.serve_forever, daemon=True)
    thread.start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{gate.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    storage.close_files()
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield gate
    finally:
        storage.close_files()
        s3fs.S3FileSystem.clear_instance_cache()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        gate.shutdown()
        gate.server_close()
        moto.stop()

"""python -m benchmarks.s3_latency_server FOLDER LATENCY_MS: an S3 server on the loopback that answers late.

Covers: moto's S3 in a process of its own, a bucket filled from a folder, a wait before every answer, counting requests.
Objects' bytes come from a dict: moto needs some 5 ms of processor time for each, which would hide the latency.
Does not cover: measuring (s3_latency.py). It prints its port once it is ready and ends when its input closes.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

BUCKET = "pictures"
COUNT = "/__count"


class Late:
    """The store behind a wait. Each request has a thread of its own, so that waits overlap as on a network."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self.objects: dict[str, bytes] = {}
        self.latency_s = 0.0
        self.requests = 0
        self._tags: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == COUNT:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [str(self.requests).encode()]
        with self._lock:
            self.requests += 1
        time.sleep(self.latency_s)
        data = self.objects.get(unquote(environ["PATH_INFO"])) if environ["REQUEST_METHOD"] == "GET" else None
        if data is None:
            return self._app(environ, start_response)
        tag = self._tag(environ["PATH_INFO"], data)
        return [_answer(data, tag, environ.get("HTTP_RANGE", ""), start_response)]

    def _tag(self, path: str, data: bytes) -> str:
        """An object's tag, computed once: a large object is asked for in many ranges."""
        if path not in self._tags:
            self._tags[path] = f"{zlib.crc32(data):08x}"
        return self._tags[path]


def _answer(data: bytes, tag: str, asked: str, start_response: Any) -> bytes:
    """An object or the range of it that was asked for, with the headers of S3."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
    first = int(match[1]) if match else 0
    last = min(len(data) - 1, int(match[2]) if match and match[2] else len(data) - 1)
    body = data[first : last + 1]
    headers = [
        ("Content-Length", str(len(body))), ("Content-Type", "image/jpeg"), ("Accept-Ranges", "bytes"),
        ("ETag", f'"{tag}"'), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ]  # fmt: skip
    if match:
        headers.append(("Content-Range", f"bytes {first}-{last}/{len(data)}"))
    start_response("206 Partial Content" if match else "200 OK", headers)
    return body


def main(folder: str, latency_ms: str) -> None:
    """Serve until the parent goes."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as S3 keeps them

        def log(self, *_: Any) -> None:
            """No line a request."""

    late = Late(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, late, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.server_port}", **keys)
    client.create_bucket(Bucket=BUCKET)
    # Sent through moto as well, for listing and for everything else that a client asks.
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())

    def send(path: Path) -> None:
        key, data = str(path.relative_to(folder)), path.read_bytes()
        client.put_object(Bucket=BUCKET, Key=key, Body=data)
        late.objects[f"/{BUCKET}/{key}"] = data

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, files))
    late.latency_s = float(latency_ms) / 1e3
    late.requests = 0
    print(f"READY {server.server_port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A PostgreSQL server of its own for tests: a fresh folder, a private port on the loopback, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def binaries() -> Path | None:
    """The folder with initdb and pg_ctl, or None where there is no server to start."""
    found = shutil.which("initdb")
    return Path(found).parent if found else next((f for f in FOLDERS if (f / "initdb").exists()), None)


def _as_user() -> list[str]:
    """initdb refuses to run as root, so the server gets the user made for it."""
    if os.geteuid() != 0:
        return []
    pwd.getpwnam("postgres")
    return ["runuser", "-u", "postgres", "--"]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _certify(folder: Path) -> str:
    """A certificate that vouches for itself; the server's options that use it."""
    key, certificate = folder / "server.key", folder / "server.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    if os.geteuid() == 0:
        shutil.chown(key, "postgres")
    return f" -c ssl=on -c ssl_cert_file={certificate} -c ssl_key_file={key}"


@contextmanager
def server(tls: bool = False) -> Iterator[str]:
    """Start a server; yields its URI, with a password in it. Stops it and removes its folder.

    With `tls`, connections are encrypted; the URI asks for it.
    """
    bin_folder = binaries()
    assert bin_folder is not None
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    secret = folder / "secret"
    secret.write_text("pa:ss/w@rd")
    secret.chmod(0o644)
    port, run = free_port(), _as_user()
    control = [*run, str(bin_folder / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    options = (
        f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB -c max_wal_size=256MB"
    )
    if tls:
        options += _certify(folder)
    try:
        subprocess.run(
            [*run, str(bin_folder / "initdb"), "-D", str(folder / "data"), "-U", "tester", "-A", "scram-sha-256",
             "--pwfile", str(secret), "-N"],
            check=True, capture_output=True,
        )  # fmt: skip
        subprocess.run(
            [*control, "-o", options, "-l", str(folder / "data" / "log"), "start"], check=True, capture_output=True
        )
        try:
            yield f"postgresql://tester:pa%3Ass%2Fw%40rd@127.0.0.1:{port}/postgres" + "?sslmode=require" * tls
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

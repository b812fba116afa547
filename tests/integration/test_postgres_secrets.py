"""A password given to a run on PostgreSQL is in none of its files, lines or pages, and the files are private."""

from __future__ import annotations

import http.client
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import postgres_server

from penstock.watch.live.start import start_watch

pytestmark = [
    pytest.mark.skipif(postgres_server.binaries() is None, reason="no PostgreSQL server is installed"),
    pytest.mark.timeout(900),
]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
SECRET = "pa:ss/w@rd"
SHOWN = {SECRET, quote(SECRET, safe=""), quote(SECRET), "ss/w@rd", "ss%2Fw%40rd", "w@rd"}
"""The password in every form that it is given in, and what would be left of it if it were cut at one of its signs."""


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with postgres_server.server() as found:
        with psycopg.connect(found, autocommit=True) as connection:
            connection.execute(
                "create table clients as select sin(i) * 3 as a, cos(i * 7) as b, i % 2 as outcome "
                "from generate_series(1, 600) i"
            )
        yield found


def forms(uri: str) -> dict[str, str]:
    place = uri.partition("@")[2]
    return {
        "before the host": uri,
        "in the query": f"postgresql://{place}?user=tester&password={quote(SECRET, safe='')}",
        "in the query, as it is": f"postgresql://{place}?user=tester&password={SECRET}&connect_timeout=9",
    }


def leaks(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [secret for secret in SHOWN if secret.encode() in data]


def penstock(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "penstock", *map(str, words)]
    return subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=800, check=False)


def shown_live(folder: Path) -> dict[str, bytes]:
    """What the live page, its data and the beginning of its stream show of a run."""
    watching = start_watch(folder)
    found = {}
    try:
        for path in ("/api/runs", f"/api/chart-data?run={folder.name}", "/metrics", f"/stream?run={folder.name}"):
            connection = http.client.HTTPConnection(watching.host, watching.port, timeout=20)
            connection.request("GET", f"{path}{'&' if '?' in path else '?'}token={watching.token}")
            answer = connection.getresponse()
            assert answer.status == 200, (path, answer.read())
            found[path] = answer.read1(1 << 20) if "stream" in path else answer.read()
            connection.close()
    finally:
        watching.stop()
    return found


@pytest.mark.parametrize("form", ["before the host", "in the query", "in the query, as it is"])
def test_a_run_keeps_the_password_to_itself(tmp_path, uri, form, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "run"
    given = forms(uri)[form]
    done = penstock("train", given, "--query", "select * from clients", "--target", "outcome", "--epochs", 1,
                    "--no-forecast", "--batch", 64, "--out", run)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = penstock("report", run)
    assert report.returncode == 0, report.stderr
    assert leaks(done.stdout + done.stderr + report.stdout + report.stderr) == []

    live = shown_live(run)
    assert all(len(text) > 20 for text in live.values())
    assert {path: leaks(text) for path, text in live.items() if leaks(text)} == {}

    paths = [run, *run.rglob("*")]
    files = [path for path in paths if path.is_file()]
    assert {"config.json", "events.jsonl", "report.html"} <= {path.name for path in files}
    assert {path.name: leaks(path.read_bytes()) for path in files if leaks(path.read_bytes())} == {}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_run_that_fails_says_nothing_of_it_either(tmp_path, uri):
    run = tmp_path / "run"
    wrong = uri.replace("/postgres", "/nowhere")
    done = penstock("train", wrong, "--query", "select * from clients", "--target", "outcome", "--out", run)
    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr
    assert leaks(done.stdout + done.stderr) == []
    assert [path.name for path in run.rglob("*") if path.is_file() and leaks(path.read_bytes())] == []

"""The live page's server over real HTTP: who may ask, what a stream sends, where it goes on, how it stops."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from urllib.parse import quote

import pytest

from penstock.core.errors import InvalidInput
from penstock.watch.live.start import is_local, lasting_token, start_watch
from tests.unit.watch.runs import START_T, event, progress, sample, start, training, write_run


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "one", training(50))
    write_run(tmp_path / "two", [start(), *(progress(START_T + n, n + 1) for n in range(5)), sample(START_T + 5)])
    return tmp_path


def get(watching, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(watching.host, watching.port, timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read().decode()
    connection.close()
    return answer


class Stream:
    """A stream of server-sent events, read one at a time."""

    def __init__(self, watching, *names: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(watching.host, watching.port, timeout=20)
        asked = "".join(f"&run={quote(name)}" for name in names)
        self._connection.request("GET", f"/stream?token={watching.token}{asked}", headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.headers["content-type"].startswith("text/event-stream")

    def next(self, kind: str) -> tuple[str, dict]:
        """The next event of a kind: its id and data."""
        fields: dict[str, str] = {}
        while True:
            line = self._response.readline().decode()
            assert line, "the stream ended"
            if line == "\n":
                if fields.get("event") == kind:
                    return fields.get("id", ""), json.loads(fields["data"])
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.rstrip("\n").partition(": ")
                fields[name] = value

    def ended(self) -> bool:
        while self._response.readline():
            continue
        return True

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("path", ["/", "/stream", "/api/runs", "/api/chart-data?run=one", "/metrics"])
def test_nothing_is_told_without_the_token(runs, path):
    with start_watch(runs) as watching:
        more = "&" if "?" in path else "?"
        for wrong in (path, f"{path}{more}token=", f"{path}{more}token=wrong", f"{path}{more}token=%FF%00"):
            status, _, text = get(watching, wrong)
            assert status == 403 and "one" not in text.replace("one else", "")
        assert get(watching, path, Authorization="Bearer wrong")[0] == 403
        assert get(watching, path, Authorization=f"Basic {watching.token}")[0] == 403


def test_only_this_machine_can_ask(runs):
    with start_watch(runs) as watching:
        assert watching.host == "127.0.0.1" and watching.url.startswith("http://127.0.0.1:")
        listening = subprocess.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True).stdout
        ports = [line.split()[1] for line in listening.splitlines() if " 0A " in line]
        assert [address for address in ports if address.endswith(f":{watching.port:04X}")] == [
            f"0100007F:{watching.port:04X}"
        ]


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("my.host", False)]
)
def test_which_addresses_are_local(host, local):
    assert is_local(host) is local


def test_the_page_and_its_headers(runs):
    with start_watch(runs) as watching:
        status, headers, _ = get(watching, f"/?token={watching.token}&run=one")
        assert status == 303 and headers["location"] == "/?run=one"  # the token goes out of the address
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and watching.token not in cookie
        status, headers, page = get(watching, "/", Cookie=cookie.partition(";")[0])
        assert status == 200 and "<main" in page and watching.token not in page
        assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY" and "server" not in headers
        assert get(watching, f"/nothing?token={watching.token}")[0] == 404


def test_runs_and_pictures_as_json(runs):
    with start_watch(runs) as watching:
        listed = json.loads(get(watching, f"/api/runs?token={watching.token}")[2])
        assert {run["name"]: run["status"] for run in listed} == {"one": "finished", "two": "running"}
        status, _, text = get(watching, f"/api/chart-data?run=one&token={watching.token}")
        assert status == 200 and json.loads(text)["facts"]["total_steps"] == 50
        for wrong in ("none", "../one", "/etc", ""):
            assert get(watching, f"/api/chart-data?run={quote(wrong)}&token={watching.token}")[0] == 404


def test_prometheus_scrapes_with_a_bearer_token(runs):
    with start_watch(runs) as watching:
        status, headers, text = get(watching, "/metrics", Authorization=f"Bearer {watching.token}")
        assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'penstock_steps{run="one"} 50' in text and 'penstock_running{run="two"} 0' in text  # silent for long
        assert get(watching, f"/metrics?token={watching.token}")[2] == text


def test_a_stream_tells_what_is_appended(runs):
    with start_watch(runs) as watching:
        stream = Stream(watching, "two")
        _, listed = stream.next("runs")
        assert {run["name"] for run in listed} == {"one", "two"}
        _, first = stream.next("chart_data")
        assert first["run"] == "two" and first["facts"]["total_steps"] == 5 and first["from"] == 0
        write_run(runs / "two", [progress(START_T + 60, 6)])
        _, second = stream.next("chart_data")
        assert second["facts"]["total_steps"] == 6 and second["from"] > 0
        write_run(runs / "three", [start()])
        assert any(run["name"] == "three" for run in stream.next("runs")[1])
        stream.close()


def test_a_stream_goes_on_where_it_was_also_after_a_restart(runs):
    with start_watch(runs) as watching:
        stream = Stream(watching, "one", "two")
        last, _ = stream.next("chart_data")
        last, _ = stream.next("chart_data")
        port, token = watching.port, watching.token
    assert stream.ended()
    write_run(runs / "two", [progress(START_T + 60, 6)])
    with start_watch(runs, port=port) as watching:
        assert watching.token != token  # an address is good for one start; open pages have their cookie
        stream = Stream(watching, "one", "two", **{"Last-Event-ID": last})
        by_run = {
            chart_data["run"]: chart_data for _, chart_data in (stream.next("chart_data"), stream.next("chart_data"))
        }
        assert by_run["two"]["from"] > 0 and by_run["two"]["facts"]["total_steps"] == 6
        assert (
            by_run["one"]["from"] > 0
            and "story" not in by_run["one"]
            and len(by_run["one"]["series"]["micro"]["i"]) <= 1
        )
        stream.close()


@pytest.mark.parametrize("last", ["x", "two=9.9.9", "two=0.1", "=;=&&&", "two=" + "9" * 5000, "%ff=1.2.3"])
def test_a_stream_with_an_id_that_cannot_be_starts_anew(runs, last):
    with start_watch(runs) as watching:
        stream = Stream(watching, "two", **{"Last-Event-ID": last})
        assert stream.next("chart_data")[1]["from"] == 0
        stream.close()


def test_a_run_that_begins_later_is_told(tmp_path):
    with start_watch(tmp_path / "not-there-yet") as watching:
        stream = Stream(watching, "new")
        assert stream.next("runs")[1] == []
        write_run(tmp_path / "not-there-yet" / "new", [start(), progress(START_T, 1)])
        assert stream.next("chart_data")[1]["facts"]["total_steps"] == 1
        stream.close()


def test_stopping_leaves_nothing(runs):
    threads = {thread.name for thread in threading.enumerate()}
    watching = start_watch(runs)
    stream = Stream(watching, "one")
    stream.next("chart_data")
    watching.stop()
    assert stream.ended()
    assert "penstock-watch" not in {thread.name for thread in threading.enumerate()} - threads
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((watching.host, watching.port))


def test_a_port_that_is_taken(runs):
    with start_watch(runs) as first, start_watch(runs) as second:
        assert first.port != second.port
        with pytest.raises(InvalidInput, match=f"{first.port}.*another --port"):
            start_watch(runs, port=first.port)


def test_the_token_is_kept_and_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = lasting_token()
    assert len(token) >= 32 and token == lasting_token()
    assert stat.S_IMODE(os.stat(tmp_path / "penstock" / "watch-token").st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    assert lasting_token() != lasting_token()


def test_the_command_serves_until_interrupted(runs):
    command = [sys.executable, "-m", "penstock", "watch", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:") and "?token=" in url
        address, _, path = url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", "/" + path)
        assert connection.getresponse().status == 303  # to the page without the token in its address
        connection.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode in (0, 130) and "Traceback" not in errors


def test_the_command_says_what_is_wrong(tmp_path):
    command = [sys.executable, "-m", "penstock", "watch", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "There is no folder" in done.stderr and "Traceback" not in done.stderr


def test_a_grave_event_reaches_the_stream(runs):
    with start_watch(runs) as watching:
        stream = Stream(watching, "two")
        stream.next("chart_data")
        write_run(runs / "two", [event(START_T + 60, "run.death", "supervisor", signal=9, why="killed")])
        _, change = stream.next("chart_data")
        assert change["facts"]["deaths"] == 1 and change["story"]["decisions"][-1]["weight"] == "bad"
        stream.close()


def test_other_hosts_and_other_pages_are_refused(runs):
    """A foreign name that leads here (DNS rebinding), and a foreign page that asks from the user's browser."""
    with start_watch(runs, port=0) as watching:
        path = f"/api/runs?token={watching.token}"
        assert get(watching, path)[0] == 200
        assert get(watching, path, Host=f"localhost:{watching.port}")[0] == 200
        assert get(watching, path, Host="evil.example")[0] == 403
        assert get(watching, path, Origin="http://evil.example")[0] == 403
        assert get(watching, path, Origin=f"http://127.0.0.1:{watching.port}")[0] == 200


def test_one_run_of_nonsense_does_not_hide_the_others(runs):
    """NaN where JSON has none, and arrays nested deeper than a parser goes."""
    for name, line in (
        ("nan", b'{"t":1,"kind":"train.epoch","epoch":NaN,"logs":{"loss":NaN}}'),
        ("deep", b"[" * 100_000),
    ):
        (runs / name).mkdir()
        (runs / name / "events.jsonl").write_bytes(line + b"\n")
    deep = b'{"t":1,"kind":"run.start","config":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}"
    (runs / "deep" / "events.jsonl").write_bytes(deep + b"\n" + b"[" * 100_000 + b"\n")
    with start_watch(runs, port=0) as watching:
        status, _, text = get(watching, f"/api/runs?token={watching.token}")
        assert status == 200
        found = {row["name"]: row for row in json.loads(text)}
        assert {"one", "nan", "deep"} <= set(found) and found["nan"]["epoch"] is None
        for name in ("nan", "deep"):
            assert get(watching, f"/api/chart-data?run={name}&token={watching.token}")[0] == 200


def test_streams_do_not_race_for_the_last_place(runs, monkeypatch):
    monkeypatch.setattr("penstock.watch.live.server.MOST_STREAMS", 5)
    with start_watch(runs, port=0) as watching:
        connections = [http.client.HTTPConnection("127.0.0.1", watching.port, timeout=60) for _ in range(20)]
        for connection in connections:  # all asked before one answer is read
            connection.request("GET", f"/stream?token={watching.token}")
        answers = [connection.getresponse().status for connection in connections]
        assert sorted(answers) == [200] * 5 + [503] * 15
        for connection in connections:
            connection.close()

"""Secrets do not reach files or messages, whatever form they come in; files of a run are their owner's."""

from __future__ import annotations

import json
import os
import stat

import pytest

from penstock.core.durable import private_folder, replace_durably, write_private
from penstock.core.secrets import redact, redacted, without_secrets
from penstock.watch.event_log import EventLog
from penstock.watch.run_folder import EVENTS

FORMS = [
    "postgresql://ann:SECRET@db/x",
    "postgresql://ann:SEC/RET@db/x",
    "postgresql://ann:SEC@RET@db:5432/x?sslmode=require",
    "postgresql://ann:SEC?RET@db/x",
    "postgresql://db/x?user=ann&password=SECRET",
    "postgresql://db/x?user=ann&password=SECRET&connect_timeout=1",
    "postgresql://db/x?sslpassword=SECRET",
    "host=db user=ann password=SECRET dbname=x",
    "host=db password='SEC RET' dbname=x",
    "dbname=x PASSWORD = SECRET",
    "s3://bucket/key?X-Amz-Signature=SECRET",
    "https://host/data.csv?token=SECRET&page=2",
    "could not connect to postgresql://ann:SECRET@db/x: refused",
    "postgresql://ann:SEC'RET@db/x?sslmode=require",
    "postgresql://db/x?user=ann&password=SEC'RET&connect_timeout=1",
    "could not connect to 'postgresql://ann:SEC'RET@db/x'",
    "postgresql://ann:SEC RET@db/x",
]


@pytest.mark.parametrize("text", FORMS)
def test_no_form_shows_its_secret(text):
    shown = redact(text)
    assert "SEC" not in shown and "RET" not in shown and "***" in shown
    assert redact(shown) == shown
    left = without_secrets(text)
    assert "SEC" not in left and "RET" not in left and "***" not in left and without_secrets(left) == left
    for kept in ("ann", "dbname=x", "connect_timeout=1", "page=2", "sslmode=require"):
        assert (kept in text) == (kept in shown)


@pytest.mark.parametrize(
    "text",
    [
        "photos/cat@home.jpg",
        "s3://bucket/a@b.csv",
        "key=3 rows",
        "monkey=1",
        "a:b@c",
        "s3://bucket/a:b@c",
        "no 'http://host:8080/x' here, ask bob@x.com",
        "no 'http://host:8080' here, ask bob@x.com",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


def test_events_hold_no_secret_and_belong_to_their_owner(tmp_path):
    folder = tmp_path / "runs" / "one"
    with EventLog(folder) as log:
        for text in FORMS:
            log.write("run.start", text, {"config": {"data": [text], "password": "SECRET"}, "error": text})
    written = (folder / EVENTS).read_text()
    assert "SEC" not in written and "RET" not in written
    assert len([json.loads(line) for line in written.splitlines()]) == len(FORMS)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / EVENTS).st_mode) == 0o600


def test_secrets_by_name_are_hidden():
    assert redacted({"token": "SECRET", "batch": 8, "n": ["password=SECRET"]}) == {
        "token": "***",
        "batch": 8,
        "n": ["password=***"],
    }


def test_written_files_are_private_and_whole(tmp_path):
    path = private_folder(tmp_path / "run") / "config.json"
    old = tmp_path / "run" / "config.json.new"
    old.write_text("left by a killed writer")
    old.chmod(0o666)
    write_private(path, "{}")
    assert path.read_text() == "{}" and stat.S_IMODE(path.stat().st_mode) == 0o600 and not old.exists()


def test_a_rename_is_on_disk_with_its_folder(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    source = tmp_path / "a.new"
    source.write_text("x")
    replace_durably(source, tmp_path / "a")
    assert synced == [str(source), str(tmp_path)]

"""Options are checked before anything starts, and kept so that a run can be resumed from them alone."""

from __future__ import annotations

import json
import os
import stat

import pytest

from penstock.core.errors import InvalidInput, NotFound, PenstockError
from penstock.train.config import (
    DATA_ENV,
    Config,
    check,
    new_folder,
    parse_image_size,
    read_config,
    refuse_foreign_code,
    without_password,
    write_config,
)


def test_a_config_comes_back(tmp_path):
    config = Config(data="x.csv", target="y", batch=7, memory="2GB")
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config


def test_pictures_need_not_be_square(tmp_path):
    assert parse_image_size("128") == 128
    config = Config(data="photos", image_size=parse_image_size("24x48"))
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config and config.image_size == (24, 48)
    for wrong in ("", "x", "24x", "24x48x3", "-3", "large"):
        with pytest.raises(InvalidInput, match="such as 24x48"):
            parse_image_size(wrong)


def test_passwords_are_not_written_down(tmp_path, monkeypatch):
    address = "postgresql://me:secret@host/db"
    write_config(tmp_path, Config(data=address))
    assert "secret" not in (tmp_path / "config.json").read_text()
    assert read_config(tmp_path).data == "postgresql://me@host/db"
    monkeypatch.setenv(DATA_ENV, address)
    assert read_config(tmp_path).data == address


def test_other_addresses_stay():
    for text in ("a/b.csv", "postgresql://host/db", "s3://bucket/a:b@c"):
        assert without_password(text) == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"epochs": 0},
        {"val": 0.95},
        {"backend": "theano"},
        {"precision": "double"},
        {"task": "guess"},
        {"memory": "plenty"},
        {"model": "net.py"},
        {"model": "nowhere.py:build"},
        {"model": "nowhere.keras"},
        {"model": "resnet"},
        {"learning_rate": 0.0},
        {"image_size": 0},
        {"image_size": (16, 0)},
        {"callbacks": "track.py"},
        {"callbacks": "nowhere.py:callbacks"},
    ],
)
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(PenstockError):
        check(Config(data="x.csv", **wrong))


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(NotFound, match="not a run folder"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"data": "x", "from_the_future": 1}))
    assert read_config(tmp_path).data == "x"


def test_runs_get_names_of_their_own(tmp_path):
    first = new_folder("some/data.v2.csv", tmp_path)
    first.mkdir(parents=True)
    assert first.name.startswith("data-") and new_folder("some/data.v2.csv", tmp_path) != first
    assert new_folder("postgresql://host/shop?x=1", tmp_path).name.startswith("shop-")


@pytest.mark.parametrize("form", ["postgresql://db/x?user=u&password=secret", "host=db user=u password=secret"])
def test_passwords_of_every_form_are_left_out(tmp_path, form):
    write_config(tmp_path / "run", Config(data=form))
    assert "secret" not in (tmp_path / "run" / "config.json").read_text()
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / "config.json").stat().st_mode) == 0o600


def test_code_named_by_a_folder_of_someone_else_is_not_run(tmp_path):
    plain, code = Config(data="x.csv"), Config(data="x.csv", model="net.py:build", callbacks="own.py:make")
    write_config(tmp_path / "run", code)
    refuse_foreign_code(tmp_path / "run", code)
    (tmp_path / "run").chmod(0o770)
    refuse_foreign_code(tmp_path / "run", plain)
    with pytest.raises(InvalidInput, match=r"can be written by others.*net.py:build and own.py:make.*--trust"):
        refuse_foreign_code(tmp_path / "run", code)
    (tmp_path / "run").chmod(0o700)
    if os.getuid() == 0:
        os.chown(tmp_path / "run" / "config.json", 12345, 12345)
        with pytest.raises(InvalidInput, match="belongs to another user"):
            refuse_foreign_code(tmp_path / "run", code)

"""Values that reach a call through functions, options and configurations."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from penstock.doctor.static.data import weigh_data
from penstock.doctor.static.scan import sarif, scan
from penstock.doctor.static.script import read_script

GB = 1_000_000_000


def value_given(tmp_path: Path, code: str) -> object:
    """The value of the argument of the call of `seen` in a script."""
    path = tmp_path / "script.py"
    path.write_text(code)
    script = read_script(path)
    call = next(
        node for node in ast.walk(script.tree) if isinstance(node, ast.Call) and "seen" in ast.unparse(node.func)
    )
    return script.value(call.args[0])


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("def f(path):\n    seen(path)\nf('a.csv')\n", "a.csv"),
        ("def f(path='a.csv'):\n    seen(path)\nf()\nf()\n", "a.csv"),
        ("def f(path):\n    seen(path)\nf('a.csv')\nf('b.csv')\n", None),
        ("def f(path):\n    seen(path)\nfor p in paths:\n    f(p)\n", None),
        ("class D:\n    def __init__(self, root):\n        seen(root)\nD('pictures')\n", "pictures"),
        ("class D:\n    def load(self, path):\n        seen(path)\nD().load(path='x.npy')\n", "x.npy"),
        ("p.add_argument('--data-file', default='t.csv')\nseen(args.data_file)\n", "t.csv"),
        ("p.add_argument('--data', default='a')\nq.add_argument('--data', default='b')\nseen(args.data)\n", None),
        ("class Config:\n    path: str = 'c.csv'\ndef f(cfg):\n    seen(cfg.path)\n", "c.csv"),
    ],
)
def test_a_value_is_followed_only_where_it_is_one(tmp_path, code, value):
    assert value_given(tmp_path, code) == value


def test_an_archive_weighs_what_its_arrays_weigh(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000, np.uint8))
    weight = weigh_data(str(tmp_path / "a.npz"), tmp_path)
    assert weight is not None
    assert weight.memory == 8_001_000
    assert weight.disk < 100_000
    (tmp_path / "b.npz").write_bytes(b"no archive")
    assert weigh_data(str(tmp_path / "b.npz"), tmp_path).memory == 10  # type: ignore[union-attr]


def test_a_name_that_is_no_file_is_not_weighed(tmp_path):
    (tmp_path / "notes.txt").write_text("a,b\n1,2\n")
    for name in ("", ".", "..", "./", "/", "*.*", 5, None, "s3://bucket/x.csv"):
        assert weigh_data(name, tmp_path) is None


def test_pictures_that_do_not_fit_are_an_error_with_their_bytes(tmp_path):
    import cv2

    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(40):
        cv2.imwrite(str(folder / f"{number}.png"), np.zeros((1000, 1000, 3), np.uint8))
    script = tmp_path / "train.py"
    script.write_text(
        "import cv2\nfrom pathlib import Path\n\ndef load(path):\n    return cv2.imread(str(path))\n\n"
        "class Data:\n    def __init__(self, root):\n        self.files = sorted(Path(root).iterdir())\n"
        "        self.ims = [None] * len(self.files)\n        for i, file in enumerate(self.files):\n"
        "            self.ims[i] = load(file)\n\nData('" + str(folder) + "')\n"
    )
    found = [finding for finding in scan(script, 100_000_000) if finding.cause.name == "list-of-images"]
    assert [(finding.line, finding.level) for finding in found] == [(12, "error")]
    assert found[0].found.nbytes == 120_000_000


def test_a_counter_as_a_static_argument_is_found(tmp_path):
    script = tmp_path / "train.py"
    text = (
        "import jax\nfrom functools import partial\n@partial(jax.jit, static_argnums=(1,))\ndef step(x, n):\n"
        "    return x + n\nfor i in range(9):\n    x = step(x, i)\n"
    )
    script.write_text(text)
    assert [finding.cause.name for finding in scan(script, GB)] == ["retracing"]
    script.write_text(text.replace("step(x, i)", "step(x, 4)"))
    assert scan(script, GB) == []


def test_sarif_has_what_its_schema_asks_for(tmp_path, monkeypatch):
    """The document was validated against the schema of OASIS by hand; this holds what that found needed."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my code"
    folder.mkdir()
    (folder / "train.py").write_text("import numpy as np\nx = np.load('x.npy')\n")
    document = json.loads(json.dumps(sarif(scan(Path("my code/train.py"), GB), "1")))
    assert (document["version"], len(document["runs"])) == ("2.1.0", 1)
    run = document["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "my%20code/train.py"
        assert place["region"]["startLine"] >= 1
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["ruleId"] in rules
        assert result["message"]["text"]

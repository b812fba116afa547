"""What the doctor finds in scripts, what it leaves alone, and that its patches do what they say."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.core.errors import BadData, NotFound
from penstock.doctor.causes import all_causes
from penstock.doctor.patch.apply import apply_edits
from penstock.doctor.static.data import weigh_data
from penstock.doctor.static.scan import sarif, scan
from penstock.doctor.static.script import read_program
from tests.integration.doctor_table import CASES, SCRIPTS

GB = 1_000_000_000
HEALTHY = Path(__file__).parents[2] / "integration" / "doctor_healthy"


@pytest.mark.parametrize("case", [pytest.param(c, id=c.script) for c in CASES if c.static])
def test_the_script_of_a_cause_shows_it(case):
    assert case.cause in {finding.cause.name for finding in scan(SCRIPTS / f"{case.script}.py", GB)}


@pytest.mark.parametrize("path", sorted(HEALTHY.glob("*.py")), ids=lambda path: path.stem)
def test_healthy_scripts_raise_no_alarm(path):
    alarms = [finding for finding in scan(path, 4 * GB) if finding.level != "note"]
    assert [(a.cause.name, a.found.place) for a in alarms] == []


@pytest.mark.parametrize("case", [pytest.param(c, id=c.script) for c in CASES if c.static])
def test_a_patch_keeps_comments_and_is_python(case):
    path = SCRIPTS / f"{case.script}.py"
    text = path.read_text()
    edits = [edit for finding in scan(path, GB) for edit in finding.found.edits]
    after = apply_edits(text, edits)
    ast.parse(after)
    assert (after != text) == bool(edits)
    for comment in (line.partition("  # ")[2] for line in text.splitlines() if "  # " in line):
        assert comment in after


def test_a_patched_script_still_compiles_and_has_no_patch_left(tmp_path):
    patched = 0
    for case in CASES:
        path = SCRIPTS / f"{case.script}.py"
        edits = [edit for finding in scan(path, GB) for edit in finding.found.edits]
        if not edits:
            continue
        after = apply_edits(path.read_text(), edits)
        assert after != path.read_text(), case.script
        compile(after, case.script, "exec")
        again = tmp_path / path.name
        again.write_text(after)
        left = [edit for finding in scan(again, GB) for edit in finding.found.edits]
        assert left == [], case.script
        patched += 1
    assert patched >= 10


def test_bytes_come_from_the_data(tmp_path):
    (tmp_path / "data.csv").write_text("a,b,name\n" + "1.5,2,somebody\n" * 10_000)
    weight = weigh_data("data.csv", tmp_path)
    assert weight is not None
    assert weight.disk == (tmp_path / "data.csv").stat().st_size
    assert weight.memory == pytest.approx(10_000 * (8 + 8 + 57 + 8), rel=0.01)
    np.save(tmp_path / "x.npy", np.zeros((100, 10)))
    assert weigh_data("x.npy", tmp_path).memory == 8_128  # type: ignore[union-attr]
    assert weigh_data("https://somewhere/x.csv", tmp_path) is None
    assert weigh_data("missing.csv", tmp_path) is None


def test_a_table_larger_than_the_limit_is_an_error_with_exit_code_3(tmp_path):
    (tmp_path / "big.csv").write_text("a,b\n" + "1,2\n" * 4_000_000)
    script = tmp_path / "train.py"
    script.write_text("import pandas as pd\nPATH = 'big.csv'\ntable = pd.read_csv(PATH)\n")
    done = CliRunner().invoke(app, ["doctor", str(script), "--memory", "50MB", "--json"])
    assert done.exit_code == 3
    found = json.loads(done.stdout)["findings"]
    assert (found[0]["cause"], found[0]["line"], found[0]["level"]) == ("whole-table-loaded", 3, "error")
    assert found[0]["nbytes"] == pytest.approx(64_000_000, rel=0.01)


def test_local_imports_are_followed_and_others_are_not(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "load.py").write_text("import numpy as np\nx = np.load('x.npy')\n")
    (tmp_path / "train.py").write_text("import os\nfrom data.load import x\nimport torch\n")
    assert [script.path.name for script in read_program(tmp_path / "train.py")] == ["train.py", "load.py"]
    assert [finding.file for finding in scan(tmp_path / "train.py", GB)] == [str(tmp_path / "data" / "load.py")]


def test_a_script_that_is_none_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(BadData, match="broken.py:1"):
        scan(tmp_path / "broken.py", GB)
    with pytest.raises(NotFound, match="no script"):
        scan(tmp_path / "missing.py", GB)


def test_fix_shows_a_diff_and_writes_only_when_asked(tmp_path):
    script = tmp_path / "train.py"
    text = "import numpy as np\n\nx = np.load('x.npy')  # keep me\n"
    script.write_text(text)
    shown = CliRunner().invoke(app, ["doctor", str(script), "--fix"])
    assert "+x = np.load('x.npy', mmap_mode=\"r\")  # keep me" in shown.stdout
    assert script.read_text() == text
    CliRunner().invoke(app, ["doctor", str(script), "--fix", "--apply"])
    assert script.read_text() == text.replace("'x.npy')", "'x.npy', mmap_mode=\"r\")")


def test_positions_are_right_after_characters_of_several_bytes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import numpy as np\nname, x = 'größe ✓', np.load('x.npy')\n", encoding="utf-8")
    edits = [edit for finding in scan(script, GB) for edit in finding.found.edits]
    assert "np.load('x.npy', mmap_mode=\"r\")" in apply_edits(script.read_text(encoding="utf-8"), edits)


def test_sarif_names_file_line_and_rule(tmp_path):
    findings = scan(SCRIPTS / "loss_keeps_graph.py", GB)
    document = sarif(findings, "1")
    result = document["runs"][0]["results"][0]
    assert result["ruleId"] == "loss-keeps-graph"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == findings[0].line
    assert {rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"]} >= {"loss-keeps-graph"}


def test_causes_have_their_own_names_and_every_part():
    causes = all_causes()
    assert len({cause.name for cause in causes}) == len(causes) >= 36
    for cause in causes:
        assert cause.title and cause.why.endswith(".") and cause.cure, cause.name

"""`penstock run` on real processes: limits, orphans, signals, evidence that outlives everyone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from penstock.doctor.evidence.read import read_evidence
from penstock.doctor.run.spy import Spy
from penstock.doctor.run.supervise import Order, supervise
from penstock.doctor.verdict.verdict import judge
from penstock.memory.cgroups import find_cgroups
from tests.integration import doctor_kills

GROW = """
import time
kept = []
while True:
    kept.append(bytearray(b"x") * 4_000_000)
    time.sleep(0.02)
"""
TREE = """
import os, subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) for _ in range(2)]
if os.fork() == 0:
    os.setsid()
    time.sleep(300)
print("ready", *[c.pid for c in children], flush=True)
time.sleep(300)
"""


INSIDE_C = """
def fill():
    return list(map(float, range(30_000_000)))
kept = fill()
"""


def run(tmp_path: Path, code: str, **options: object) -> int:
    order = Order((sys.executable, "-c", code), tmp_path / "out", **options)  # type: ignore[arg-type]
    return supervise(order).exit_code


def start(tmp_path: Path, code: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "run", *options, "--out", str(tmp_path / "out"), "--"]
    return subprocess.Popen([*command, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def tagged(folder: Path) -> list[psutil.Process]:
    """Processes of a run, found by the folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PENSTOCK_RUN_FOLDER") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(folder: Path, timeout_s: float = 20.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not tagged(folder):
            return True
        time.sleep(0.1)
    return False


def test_a_kill_for_memory_is_confirmed_by_a_counter(tmp_path):
    assert run(tmp_path, GROW, memory=120_000_000) == 137
    found = judge(tmp_path / "out")
    assert (found.ending.kind, found.ending.confirmed) == ("kernel-oom", True)
    assert found.shape.peak > 80_000_000
    assert any("kept" in name for name in found.names)


def test_exit_code_and_output_are_the_commands_own(tmp_path):
    code = "import sys; print('hello'); print('oh', file=sys.stderr); sys.exit(7)"
    command = [
        sys.executable,
        "-m",
        "penstock",
        "run",
        "--out",
        str(tmp_path / "out"),
        "--",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout == "hello\n"
    assert "oh\n" in done.stderr
    assert judge(tmp_path / "out").ending.kind == "failed"


def test_sigkill_by_a_person_is_not_called_a_memory_kill(tmp_path):
    assert run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)") == 137
    found = judge(tmp_path / "out")
    assert found.ending.kind == "killed-by-other"
    assert not found.memory
    assert found.causes == []


def test_exit_137_without_a_kill_is_not_called_a_memory_kill(tmp_path):
    assert run(tmp_path, "import sys; sys.exit(137)") == 137
    assert not judge(tmp_path / "out").memory


def test_a_killed_supervisor_leaves_no_orphan_and_its_evidence_can_be_judged(tmp_path):
    supervisor = start(tmp_path, TREE)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline().startswith("ready")
    time.sleep(1.0)
    killed_at = time.time()
    supervisor.kill()
    supervisor.wait()
    assert gone(tmp_path / "out")
    evidence = read_evidence(tmp_path / "out")
    assert evidence.end is None
    assert killed_at - evidence.samples[-1]["t"] < 1.0
    assert judge(tmp_path / "out").ending.kind == "lost"


def test_a_killed_shepherd_neither_hangs_the_supervisor_nor_leaves_orphans(tmp_path):
    supervisor = start(tmp_path, TREE)
    assert supervisor.stdout is not None
    supervisor.stdout.readline()
    shepherd = next(p for p in psutil.Process(supervisor.pid).children() if "shepherd.py" in " ".join(p.cmdline()))
    shepherd.kill()
    assert supervisor.wait(30) == 1
    assert gone(tmp_path / "out")


VICTIM = """
import os, sys, time
worker = os.fork()
if worker == 0:
    open("/proc/self/oom_score_adj", "w").write("1000")
    held = bytearray(b"x") * 40_000_000
    time.sleep(300)
kept = []
while os.waitpid(worker, os.WNOHANG)[0] == 0:
    kept.append(bytearray(b"x") * 2_000_000)
    time.sleep(0.05)  # slowly: each process is looked at several times a second, not at every sample
sys.exit(1)
"""


def test_the_victim_is_told_apart_from_the_holder(tmp_path):
    assert run(tmp_path, VICTIM, memory=150_000_000) == 1
    found = judge(tmp_path / "out")
    assert found.ending.kind == "kernel-oom"
    assert found.holder.startswith("the main process")
    if found.ending.victims:  # where the kernel's log may be read
        assert "worker" in found.ending.text
        assert "not the one that held the memory" in found.holder


def test_sigterm_reaches_the_script(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print(1, flush=True); time.sleep(60)"
    supervisor = start(tmp_path, code)
    assert supervisor.stdout is not None
    supervisor.stdout.readline()
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(30) == 3


def test_a_second_run_into_the_same_folder_is_refused(tmp_path):
    run(tmp_path, "pass")
    command = [sys.executable, "-m", "penstock", "run", "--out", str(tmp_path / "out"), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another run" in done.stderr


def test_a_site_customisation_of_the_user_still_runs(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 5")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert run(tmp_path, "import builtins, sys; sys.exit(builtins.mine)") == 5


def test_verdict_command_prints_json(tmp_path):
    run(tmp_path, "raise MemoryError('Unable to allocate 12.5 GiB for an array')")
    command = [sys.executable, "-m", "penstock", "verdict", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["ending"]["kind"] == "python-memory"
    assert "12.5 GiB" in found["ending"]["text"]


def test_without_a_cgroup_the_limit_is_kept_by_supervision(tmp_path):
    """In a mount namespace in which no group can be made, as in most containers."""
    mount = find_cgroups()[0].mount
    options = ("run", "--memory", "150MB", "--out", str(tmp_path / "out"), "--", sys.executable, "-c", GROW)
    shell = 'mount -o remount,ro,bind "$0" && exec "$@"'
    command = ["unshare", "--mount", "/bin/sh", "-c", shell, str(mount), sys.executable, "-m", "penstock", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (tmp_path / "out" / "run.json").exists():
        pytest.skip(f"no mount namespace can be made here: {done.stderr}")
    assert done.returncode == 137
    found = judge(tmp_path / "out")
    assert (found.ending.kind, found.memory) == ("own-limit", True)
    assert found.shape.peak < 200_000_000


RESUMES = """
import json, os, sys, time
first = not os.environ.get("PENSTOCK_ATTEMPT")
step = json.load(open("state.json"))["step"] if os.path.exists("state.json") else 0
print("begins at", step, "attempt", os.environ.get("PENSTOCK_ATTEMPT", "1"), flush=True)
kept = []
while step < 60:
    step += 1
    open("state.new", "w").write(json.dumps({"step": step}))
    os.replace("state.new", "state.json")
    if first:
        kept.append(bytearray(b"x") * 4_000_000)
    time.sleep(0.01)
print("done", flush=True)
"""


def test_a_retry_runs_the_command_again_and_the_script_goes_on(tmp_path):
    (tmp_path / "train.py").write_text(RESUMES)
    command = [sys.executable, "-m", "penstock", "run", "--memory", "120MB", "--retry", "2", "--out", "out", "--"]
    done = subprocess.run(
        [*command, sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, end = done.stdout.splitlines()
    assert first == "begins at 0 attempt 1"
    assert second.endswith("attempt 2")
    assert int(second.split()[2]) > 5  # where the killed one was, not at the beginning
    assert end == "done"
    assert "Running it again (1 of 2)" in done.stderr
    assert "train.py" in done.stderr.partition("Running it again")[2]
    assert "(2 of 2)" not in done.stderr
    assert judge(tmp_path / "out").ending.kind == "kernel-oom"
    assert judge(tmp_path / "out" / "attempt-2").ending.kind == "finished"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_random_kills_leave_no_orphan_and_hang_nobody(seed):
    """A part of what `python -m tests.integration.doctor_kills` does 200 times."""
    outcomes = list(doctor_kills.kills(12, seed))
    assert [outcome for outcome in outcomes if outcome.wrong] == []


def test_the_committed_kills_are_two_hundred_without_a_fault():
    found = json.loads(doctor_kills.COUNTS.read_text())
    assert found["kills"] >= 200
    assert found["wrong"] == {}
    assert sum(found["victims"].values()) == found["kills"]


LIGHTNING = """
import os, signal, sys
import lightning, torch

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

rows = torch.utils.data.TensorDataset(torch.randn(32, 4))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=sys.argv[1], logger=False,
                            enable_progress_bar=False)
trainer.fit(Line(), loader)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_checkpoint_that_lightning_saved_elsewhere_is_noticed(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    order = Order((sys.executable, "-c", LIGHTNING, str(elsewhere)), tmp_path / "out")
    assert supervise(order).exit_code == 137
    checkpoint = Path(judge(tmp_path / "out").resume.checkpoint)
    assert checkpoint.suffix == ".ckpt"
    assert checkpoint.is_relative_to(elsewhere)
    assert checkpoint.exists()


@pytest.mark.skipif(not Path(sys.executable).with_name("py-spy").exists(), reason="py-spy is not installed")
def test_stacks_from_inside_of_c_code_are_read_from_outside(tmp_path):
    """One call of C code answers no signal, and nothing is sent to it that could disturb it."""
    assert run(tmp_path, INSIDE_C, memory=3_000_000_000) == 0
    found = read_evidence(tmp_path / "out")
    asked = [record["what"] for record in found.story if record.get("kind") == "asked"]
    assert "spy" in asked
    assert "deep" not in asked
    spied = {record["t"] for record in found.story if record.get("what") == "spy"}
    functions = {frame.function for stack in found.stacks if stack.t in spied for t in stack.threads for frame in t}
    assert "fill" in functions


@pytest.mark.skipif(not Path(sys.executable).with_name("py-spy").exists(), reason="py-spy is not installed")
def test_a_refused_dump_is_not_asked_for_again(tmp_path):
    (tmp_path / "inside").mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    spy = Spy(tmp_path)
    assert spy.ask(gone.pid)
    spy.close()
    assert spy.ask(os.getpid()) == ""

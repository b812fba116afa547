"""Commands in a real memory limit: they see it, they die of it, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.core.errors import InvalidInput, NotFound
from penstock.memory.cgroups import find_cgroups, read_counters
from penstock.memory.jail import limited_group, run_limited

MB = 1_000_000
LIMIT = 150 * MB
FILL = """
import sys, time
from penstock.memory.limits import find_limit
found = find_limit()
print(found.nbytes, found.reason, flush=True)
held = bytearray(b'x') * int(sys.argv[1])
time.sleep(0.2)
print('alive', flush=True)
"""


def can_make_groups() -> bool:
    with limited_group(LIMIT) as group:
        return group is not None


needs_groups = pytest.mark.skipif(not can_make_groups(), reason="memory cgroups cannot be made here")


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, args)]


def groups_left() -> list[Path]:
    return [left for group in find_cgroups() for left in group.path.glob(f"penstock-{os.getpid()}-*")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@needs_groups
def test_a_child_sees_its_limit_and_lives_within_it() -> None:
    outcome = run_limited(python(FILL, 60 * MB), LIMIT, capture=True, how="cgroup")
    assert (outcome.returncode, outcome.killed, outcome.stderr) == (0, False, "")
    assert outcome.stdout is not None
    seen, reason = outcome.stdout.splitlines()[0].split(maxsplit=1)
    assert 0 <= LIMIT - int(seen) < 4096  # the kernel rounds down to pages
    assert reason.startswith(outcome.how)
    assert 60 * MB < outcome.peak_nbytes < 100 * MB
    assert outcome.peak_usage_nbytes is not None
    assert outcome.peak_usage_nbytes >= outcome.peak_nbytes
    assert groups_left() == []


@needs_groups
def test_a_child_beyond_its_limit_is_killed_and_that_is_confirmed() -> None:
    outcome = run_limited(python(FILL, 400 * MB), LIMIT, capture=True)
    assert (outcome.returncode, outcome.killed) == (-signal.SIGKILL, True)
    assert outcome.stdout is not None
    assert "alive" not in outcome.stdout
    assert 0 < outcome.peak_nbytes <= LIMIT
    assert groups_left() == []


@needs_groups
def test_a_kill_of_a_grandchild_is_seen_though_the_child_survives() -> None:
    parent = f"import subprocess, sys; print(subprocess.call([sys.executable, '-c', {FILL!r}, '{400 * MB}']))"
    outcome = run_limited(python(parent), LIMIT, capture=True)
    assert (outcome.returncode, outcome.killed) == (0, True)
    assert outcome.stdout is not None
    assert outcome.stdout.splitlines()[-1] == "-9"


@needs_groups
def test_a_kill_by_hand_is_not_taken_for_memory() -> None:
    outcome = run_limited(python("import os; os.kill(os.getpid(), 9)"), LIMIT)
    assert (outcome.returncode, outcome.killed) == (-9, False)


@needs_groups
def test_page_cache_is_no_part_of_the_peak(tmp_path: Path) -> None:
    code = "import sys\nwith open(sys.argv[1], 'wb') as f:\n for _ in range(300): f.write(b'x' * 1000000)"
    outcome = run_limited(python(code, tmp_path / "large"), LIMIT)
    assert (outcome.returncode, outcome.killed) == (0, False)
    assert outcome.peak_nbytes < 50 * MB
    assert outcome.peak_usage_nbytes is not None
    assert outcome.peak_usage_nbytes > 100 * MB


@needs_groups
def test_what_the_command_leaves_running_is_killed() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)"
    outcome = run_limited(python(code), LIMIT, capture=True)
    assert outcome.stdout is not None
    assert not is_alive(int(outcome.stdout))
    assert groups_left() == []


@pytest.mark.parametrize("how", ["any", "rlimit"])
def test_an_interrupt_kills_the_command_and_cleans_up(how: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import os, sys, time\nopen(sys.argv[1] + '~', 'w').write(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '~', sys.argv[1])\ntime.sleep(300)"
    )

    def interrupt() -> None:
        pause = threading.Event()
        while not note.exists():
            pause.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_limited(python(code, note), LIMIT, how=how)
    thread.join()
    assert not is_alive(int(note.read_text()))
    assert groups_left() == []


def test_a_timeout_kills_the_command() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_limited(["sleep", "300"], LIMIT, timeout_s=0.2)
    assert groups_left() == []


def test_without_groups_the_data_segment_is_limited() -> None:
    outcome = run_limited(python(FILL, 400 * MB), LIMIT, capture=True, how="rlimit")
    assert (outcome.returncode, outcome.killed, outcome.how) == (1, False, "rlimit")
    assert outcome.stdout is not None
    assert outcome.stdout.split() == [str(LIMIT // 1024 * 1024), "ulimit", "-d"]
    assert outcome.stderr is not None
    assert "MemoryError" in outcome.stderr
    # The limit counts what is mapped, touched or not: libraries' reserves need more room than the bytes they fill.
    small = run_limited(python(FILL, 50 * MB), 6 * LIMIT, capture=True, how="rlimit")
    assert small.returncode == 0, small.stderr
    assert 50 * MB < small.peak_nbytes < 150 * MB


def test_output_environment_and_folder_are_handed_on(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['COLOUR'], os.getcwd()); sys.stderr.write('oh'); sys.exit(3)"
    outcome = run_limited(python(code), LIMIT, env={"COLOUR": "blue"}, cwd=str(tmp_path), capture=True)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, f"blue {tmp_path}\n", "oh")


def test_commands_that_cannot_run_are_refused() -> None:
    with pytest.raises(NotFound, match="no-such-command"):
        run_limited(["no-such-command"], LIMIT)
    with pytest.raises(InvalidInput, match="list of words"):
        run_limited("python train.py", LIMIT)
    with pytest.raises(InvalidInput):
        run_limited([], LIMIT)
    with pytest.raises(InvalidInput):
        run_limited(["true"], "lots")


@pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
def test_the_counters_of_this_process() -> None:
    counters = read_counters()
    assert counters is not None
    assert counters.usage > 0
    assert counters.anon > 0

"""Checks of the environment, on machines laid out in a folder."""

from __future__ import annotations

from penstock.doctor.environment.check import Machine, check_environment


def machine(tmp_path, **changes):
    files = {
        "proc/meminfo": "MemTotal: 16000000 kB\nSwapTotal: 0 kB\nCommitted_AS: 100 kB\nCommitLimit: 200 kB\n",
        "proc/self/mountinfo": "30 20 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "4000000000\n",
        "sys/fs/cgroup/memory.oom.group": "1\n",
        "proc/sys/vm/overcommit_memory": "2\n",
        "proc/sys/vm/max_map_count": "65530\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Machine(
        **{"root": tmp_path, "env": {}, "version": (3, 12, 0), "shm": (1, 64 << 20), "release": "6.1", **changes}
    )


def levels(found):
    return {check.name: check.level for check in found}


def test_a_container_with_every_trap(tmp_path):
    found = check_environment(machine(tmp_path))
    assert levels(found).items() >= {
        "limit": "good", "container": "note", "group kill": "note", "/dev/shm": "warning", "overcommit": "warning",
        "mappings": "note", "huge pages": "note", "python": "good",
    }.items()  # fmt: skip
    assert "4 GB" in found[0].text


def test_pythons_with_the_incremental_collector_are_warned_of(tmp_path):
    assert levels(check_environment(machine(tmp_path, version=(3, 14, 2))))["python"] == "warning"
    assert levels(check_environment(machine(tmp_path, version=(3, 14, 5))))["python"] == "note"


def test_virtual_machines_and_allocators(tmp_path):
    wsl = check_environment(machine(tmp_path, release="5.15-microsoft-standard-WSL2"))
    assert "WSL" in next(check.text for check in wsl if check.name == "virtual machine")
    env = {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}
    assert levels(check_environment(machine(tmp_path, env=env)))["allocator"] == "good"

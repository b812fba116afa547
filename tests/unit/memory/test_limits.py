"""The smallest limit wins, wherever the kernel writes it; the user's comes on top."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.core.errors import InvalidInput
from penstock.memory.cgroups import Cgroup, Counters, find_cgroups, read_counters
from penstock.memory.limits import Limit, current_limit, current_reserve, find_limit, limit, list_limits

MB = 1_000_000
NO_LIMIT_V1 = "9223372036854771712"
V1_MOUNT = "35 31 0:32 {top} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2_MOUNT = "41 31 0:38 {top} /sys/fs/cgroup{sub} rw,relatime shared:9 - cgroup2 cgroup2 rw\n"


class Tree:
    """A made-up /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemFree: 1 kB\nMemTotal:       64000000 kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def v1(self, place: str, limit: str = NO_LIMIT_V1, hierarchical: str = NO_LIMIT_V1) -> None:
        self.write(f"sys/fs/cgroup/memory{place}/memory.limit_in_bytes", limit + "\n")
        self.write(f"sys/fs/cgroup/memory{place}/memory.stat", f"cache 5\nhierarchical_memory_limit {hierarchical}\n")

    def v2(self, place: str, most: str = "max", high: str = "max") -> None:
        self.write(f"sys/fs/cgroup{place}/memory.max", most + "\n")
        self.write(f"sys/fs/cgroup{place}/memory.high", high + "\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_without_groups_the_host_is_the_limit(tree: Tree) -> None:
    assert find_limit(tree.root) == Limit(64_000_000 * 1024, "host memory")


def test_v1_own_group(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V1_MOUNT.format(top="/"))
    tree.write("proc/self/cgroup", "4:memory:/jobs/one\n1:cpu,cpuacct:/x\n")
    tree.v1("")
    tree.v1("/jobs")
    tree.v1("/jobs/one", str(500 * MB))
    assert find_limit(tree.root) == Limit(500 * MB, "cgroup v1 memory.limit_in_bytes of /jobs/one")


def test_v1_ancestor_is_stricter(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V1_MOUNT.format(top="/"))
    tree.write("proc/self/cgroup", "4:cpuset,memory:/jobs/one\n")
    tree.v1("", str(400 * MB))
    tree.v1("/jobs", str(300 * MB))
    tree.v1("/jobs/one", str(500 * MB))
    assert find_limit(tree.root) == Limit(300 * MB, "cgroup v1 memory.limit_in_bytes of /jobs")


def test_v1_hierarchical_limit_tells_of_ancestors_out_of_sight(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V1_MOUNT.format(top="/docker/abc"))
    tree.write("proc/self/cgroup", "4:memory:/docker/abc\n")
    tree.v1("", str(500 * MB), hierarchical=str(200 * MB))
    assert find_limit(tree.root) == Limit(200 * MB, "cgroup v1 hierarchical_memory_limit of /")


def test_v1_group_below_the_mounted_part(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V1_MOUNT.format(top="/docker/abc"))
    tree.write("proc/self/cgroup", "4:memory:/docker/abc/inner\n")
    tree.v1("", str(500 * MB))
    tree.v1("/inner", str(100 * MB))
    assert find_limit(tree.root).nbytes == 100 * MB


@pytest.mark.parametrize("place", ["/kubepods/pod7/c9", "/../../other"])
def test_a_path_of_the_host_falls_back_to_the_mount(tree: Tree, place: str) -> None:
    tree.write("proc/self/mountinfo", V1_MOUNT.format(top="/"))
    tree.write("proc/self/cgroup", f"4:memory:{place}\n")
    tree.v1("", str(150 * MB))
    assert find_limit(tree.root).nbytes == 150 * MB


def test_v2_max_and_high_with_ancestors(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V2_MOUNT.format(top="/", sub=""))
    tree.write("proc/self/cgroup", "0::/user.slice/run.scope\n")
    tree.v2("/user.slice", high=str(250 * MB))
    tree.v2("/user.slice/run.scope", most=str(300 * MB))
    assert find_limit(tree.root) == Limit(250 * MB, "cgroup v2 memory.high of /user.slice")
    tree.v2("/user.slice/run.scope", most=str(200 * MB))
    assert find_limit(tree.root) == Limit(200 * MB, "cgroup v2 memory.max of /user.slice/run.scope")


def test_v2_container_sees_its_group_as_the_root(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V2_MOUNT.format(top="/", sub=""))
    tree.write("proc/self/cgroup", "0::/\n")
    tree.v2("", most=str(128 * MB))
    assert find_limit(tree.root) == Limit(128 * MB, "cgroup v2 memory.max of /")


def test_hybrid_takes_memory_from_v1_though_v2_is_mounted(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", V2_MOUNT.format(top="/", sub="/unified") + V1_MOUNT.format(top="/"))
    tree.write("proc/self/cgroup", "4:memory:/a\n0::/a\n")
    (tree.root / "sys/fs/cgroup/unified/a").mkdir(parents=True)
    tree.v1("/a", str(90 * MB))
    assert [group.version for group in find_cgroups(tree.root)] == [1]
    assert find_limit(tree.root).nbytes == 90 * MB


def test_mount_points_with_spaces(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", r"1 1 0:1 / /odd\040place rw - cgroup2 none rw" + "\n")
    tree.write("proc/self/cgroup", "0::/\n")
    tree.write("odd place/memory.max", str(77 * MB))
    assert find_limit(tree.root).nbytes == 77 * MB


@pytest.mark.parametrize("version", [1, 2])
def test_without_mountinfo_the_usual_places_are_tried(tree: Tree, version: int) -> None:
    if version == 1:
        tree.v1("", str(60 * MB))
        tree.write("proc/self/cgroup", "4:memory:/\n")
    else:
        tree.v2("", str(60 * MB))
        tree.write("proc/self/cgroup", "0::/\n")
    assert find_limit(tree.root).nbytes == 60 * MB


def test_counters_of_v1(tree: Tree) -> None:
    folder = tree.root / "sys/fs/cgroup/memory"
    tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "900\n")
    tree.write("sys/fs/cgroup/memory/memory.max_usage_in_bytes", "1000\n")
    tree.write("sys/fs/cgroup/memory/memory.stat", "rss 1\ntotal_rss 300\ntotal_shmem 40\ntotal_cache 500\n")
    tree.write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert read_counters(Cgroup(1, folder, folder)) == Counters(usage=900, peak=1000, anon=340, oom_kills=2)


def test_counters_of_v2_without_a_peak(tree: Tree) -> None:
    folder = tree.root / "sys/fs/cgroup"
    tree.write("sys/fs/cgroup/memory.current", "900\n")
    tree.write("sys/fs/cgroup/memory.stat", "anon 300\nfile 500\nshmem 40\n")
    tree.write("sys/fs/cgroup/memory.events", "low 0\noom 3\noom_kill 1\n")
    assert read_counters(Cgroup(2, folder, folder)) == Counters(usage=900, peak=None, anon=340, oom_kills=1)
    assert read_counters(Cgroup(2, folder / "gone", folder)) is None


def test_the_real_machine_has_a_limit() -> None:
    found = find_limit()
    assert found.nbytes > 10 * MB
    assert "host memory" in {one.reason for one in list_limits()}
    assert str(Limit(2_000_000_000, "host memory")) == "2 GB (host memory)"


def test_a_block_restores_what_held_before() -> None:
    before = current_limit()
    with limit("50MB"):
        assert current_limit() == Limit(50 * MB, "set by the user")
        with limit("70MB", reserve="10MB"):
            assert current_limit().nbytes == 70 * MB
            assert current_reserve() == 10 * MB
        assert current_limit().nbytes == 50 * MB
        assert current_reserve() is None
    assert current_limit() == before


def test_a_call_holds_until_it_is_taken_back() -> None:
    before = current_limit()
    held = limit(80 * MB)
    assert current_limit().nbytes == 80 * MB
    with held:
        assert current_limit().nbytes == 80 * MB
    assert current_limit() == before
    with held:
        assert current_limit().nbytes == 80 * MB
    assert current_limit() == before


def test_an_error_restores_too() -> None:
    before = current_limit()
    with pytest.raises(KeyError), limit("50MB"):
        raise KeyError
    assert current_limit() == before


def test_the_user_cannot_have_more_than_there_is() -> None:
    found = find_limit()
    with limit("900TB"):
        assert current_limit() == found


@pytest.mark.parametrize("wrong", [0, "0GB", "much", -5])
def test_sizes_that_are_none_are_refused_and_change_nothing(wrong: int | str) -> None:
    before = current_limit()
    with pytest.raises(InvalidInput):
        limit(wrong)
    with pytest.raises(InvalidInput, match="leaves nothing of the limit"):
        limit("1GB", reserve="1GB")
    assert current_limit() == before


def test_many_threads_leave_no_limit_behind() -> None:
    before = current_limit()

    def work(nbytes: int) -> None:
        for _ in range(200):
            with limit(nbytes):
                pass

    threads = [threading.Thread(target=work, args=((n + 10) * MB,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert current_limit() == before

"""How a run ended, and by whose hand.

Covers: the exit status, counters of kills, the kernel's log, killers in userspace, errors in the script's own words.
Does not cover: why memory ran out (causes/).

SIGKILL without a counter that moved and without a log line is "killed by something else": never a guess.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from penstock.doctor.evidence.read import Evidence

FRAMEWORK = re.compile(
    r"CUDA out of memory|HIP out of memory|MPS backend out of memory|RESOURCE_EXHAUSTED|ResourceExhaustedError|"
    r"OOM when allocating tensor|Dst tensor is not initialized|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|"
    r"Failed to determine best cudnn|DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory"
)
SHM = re.compile(
    r"insufficient shared memory \(shm\)|No space left on device.*torch_\d+|unable to write to file </torch_"
)
RAY = re.compile(r"node running low on memory|ray\.exceptions\.OutOfMemoryError|memory monitor.*kill", re.IGNORECASE)
SLURM = re.compile(r"slurmstepd: error:.*oom|Exceeded job memory limit|oom_kill event", re.IGNORECASE)
MAPS = re.compile(r"unable to mmap \d+ bytes.*\(12\)|vm\.max_map_count|mmap.*Cannot allocate memory")
FORK = re.compile(r"\[Errno 12\] Cannot allocate memory|fork: (retry: )?Cannot allocate memory|BlockingIOError.*fork")
WORKER = re.compile(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) (?:is killed by signal: (\w+)|exited unexpectedly)")
POOL = re.compile(r"BrokenProcessPool|TerminatedWorkerError|WorkerLostError")
KILLED = re.compile(r"Killed process (\d+)")


@dataclass(frozen=True)
class Ending:
    """`kind` is one of the words below, `memory` whether memory was the reason, `confirmed` if it was counted.

    finished · failed · kernel-oom · group-oom · own-limit · time-limit · python-memory · framework-oom · shm-full ·
    bus-error · map-count · fork-memory · ray · slurm · userspace-killer · interrupted · killed-by-other · lost
    """

    kind: str
    text: str
    memory: bool
    confirmed: bool
    exit_code: int | None
    victims: tuple[int, ...] = ()


def how_it_ended(evidence: Evidence) -> Ending:
    """Classify the end by what was counted first, by words second, by the exit status last."""
    end = evidence.end
    if end is None:
        return _lost(evidence)
    status = end.get("status")
    code = None if status is None else os.waitstatus_to_exitcode(int(status))
    stopped = next((record for record in evidence.story if record.get("kind") == "stopped"), None)
    if stopped is not None:
        return _stopped(stopped["why"], code)
    killed = _counted_kills(evidence)
    victims = victims_of(evidence)
    if killed and code != 0:
        who = _who(evidence, victims)
        return Ending(
            "kernel-oom", f"The kernel killed {who} for memory ({killed} counted).", True, True, code, victims
        )
    if code == 0:
        remark = f" The kernel killed a process of it on the way ({killed} counted)." if killed else ""
        return Ending("finished", f"The command finished.{remark}", bool(killed), bool(killed), 0, victims)
    return _by_words(evidence, code) or _by_signal(evidence, code)


def victims_of(evidence: Evidence) -> tuple[int, ...]:
    """The processes that the kernel's log says it killed, as far as they were ours."""
    ours = {int(process["pid"]) for sample in evidence.samples for process in sample["procs"]}
    lines = (evidence.end or {}).get("kernel", [])
    named = [int(match[1]) for line in lines if (match := KILLED.search(line))]
    named += [int(n) for match in WORKER.finditer(_words(evidence)) for n in re.findall(r"\d+", match[1])]
    return tuple(dict.fromkeys(pid for pid in named if pid in ours))


def _counted_kills(evidence: Evidence) -> int:
    """Kills that the script's group counted; the machine's count is believed only where there is no group."""
    before, after = evidence.run["kills"], (evidence.end or {}).get("kills", {})
    own = [sample["group"]["kills"] for sample in evidence.samples if "group" in sample]
    if own and evidence.run["limit_kept_by"] == "cgroup":  # a fresh group's counter begins at 0
        return int(max(own))
    if own:
        moved = max(0, int(after.get("group", 0)) - int(before.get("group", 0)))
        return moved if moved and victims_of(evidence) else (moved if _died(evidence) else 0)
    moved = max(0, int(after.get("machine", 0)) - int(before.get("machine", 0)))
    return moved if victims_of(evidence) else 0


def _died(evidence: Evidence) -> bool:
    status = (evidence.end or {}).get("status")
    return status is not None and os.waitstatus_to_exitcode(int(status)) in (-9, 137)


def _who(evidence: Evidence, victims: tuple[int, ...]) -> str:
    main = main_pid(evidence)
    if not victims:
        return "a process of the command"
    names = ["the main process" if pid == main else f"worker {pid}" for pid in victims]
    return " and ".join(names[:3])


def main_pid(evidence: Evidence) -> int:
    """The command's own process: the first one seen."""
    for sample in evidence.samples:
        if sample["procs"]:
            return int(sample["procs"][0]["pid"])
    return min(evidence.boards, default=0)


def _stopped(why: str, code: int | None) -> Ending:
    if why == "memory":
        text = "penstock stopped the command at the limit of --memory (no memory cgroup can be made here)."
        return Ending("own-limit", text, True, True, code)
    return Ending("time-limit", "penstock stopped the command after --minutes.", False, True, code)


def _words(evidence: Evidence) -> str:
    errors = "\n".join(f"{e.get('type')}: {e.get('message')}" for e in evidence.errors if e.get("kind") == "error")
    return errors + "\n" + evidence.stderr


def _by_words(evidence: Evidence, code: int | None) -> Ending | None:
    """Endings that somebody put into words: an exception, a killer's log, the framework's message."""
    text = _words(evidence)
    journal = "\n".join((evidence.end or {}).get("journal", []))
    table = (
        ("shm-full", SHM, "A worker died of a bus error: /dev/shm is full."),
        ("ray", RAY, "Ray's memory monitor killed a task; it takes the newest one, not the largest."),
        ("slurm", SLURM, "Slurm ended the job at its memory limit."),
        ("framework-oom", FRAMEWORK, "The framework could not allocate memory."),
        ("map-count", MAPS, "The process has too many memory mappings (vm.max_map_count), though memory is free."),
        ("fork-memory", FORK, "A new process could not be started: the kernel refuses to promise more memory."),
        (
            "python-memory",
            re.compile(r"MemoryError|bad_alloc|Unable to allocate"),
            "An allocation failed in the script.",
        ),
    )
    if journal:
        return Ending("userspace-killer", f"A userspace killer ended it: {journal.splitlines()[-1]}", True, True, code)
    for kind, pattern, sentence in table:
        if found := pattern.search(text):
            return Ending(
                kind, f"{sentence} It says: {_line(text, found.start())}", True, True, code, victims_of(evidence)
            )
    return None


def _by_signal(evidence: Evidence, code: int | None) -> Ending:
    number = -code if code is not None and code < 0 else (code - 128 if code is not None and code > 128 else 0)
    passed = {record.get("number") for record in evidence.story if record.get("kind") == "signal"}
    if number in passed and number:
        return Ending("interrupted", f"The command was asked to stop ({_name(number)}).", False, True, code)
    if number == signal.SIGBUS:
        text = "SIGBUS: a mapped file could not be read, or /dev/shm is full; its size and use are in the evidence."
        return Ending("bus-error", text, False, False, code)
    if number == signal.SIGKILL and code is not None and code < 0:
        text = "SIGKILL, but no counter of memory kills moved: killed by something else (a person, a scheduler)."
        return Ending("killed-by-other", text, False, False, code)
    worker = WORKER.search(_words(evidence)) or POOL.search(_words(evidence))
    if worker:
        text = "A worker was killed, but no counter of memory kills moved: killed by something else."
        return Ending("killed-by-other", text, False, False, code, victims_of(evidence))
    if number == signal.SIGINT:
        return Ending("interrupted", "The command was interrupted.", False, True, code)
    last = next((e for e in reversed(evidence.errors) if e.get("kind") == "error"), None)
    why = f"{last['type']}: {str(last['message'])[:200]}" if last else f"exit code {code}"
    return Ending("failed", f"The command failed, and not for memory: {why}", False, False, code)


def _lost(evidence: Evidence) -> Ending:
    """The supervisor was killed too: all that can be said is how things stood in the last sample."""
    last = evidence.samples[-1] if evidence.samples else None
    kills = max((s["group"]["kills"] for s in evidence.samples if "group" in s), default=0)
    base = 0 if evidence.run["limit_kept_by"] == "cgroup" else evidence.run["kills"]["group"]
    share = last["used"] / evidence.run["limit"] if last else 0.0
    if kills > base:
        return Ending("group-oom", "The kernel killed the command and its supervisor for memory.", True, True, None)
    if evidence.run.get("group_oom") and share > 0.8:
        text = (
            f"Everything ended at once at {share:.0%} of the limit; memory.oom.group is set, so the kernel kills all."
        )
        return Ending("group-oom", text, True, False, None)
    if share > 0.9:
        text = f"Everything ended at once at {share:.0%} of the limit; no counter could be read afterwards."
        return Ending("group-oom", text, True, False, None)
    text = f"The evidence ends without a last word, at {share:.0%} of the limit: supervisor and command ended together."
    return Ending("lost", text, False, False, None)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _line(text: str, place: int) -> str:
    start = text.rfind("\n", 0, place) + 1
    return text[start : text.find("\n", place) if "\n" in text[place:] else None].strip()[:240]

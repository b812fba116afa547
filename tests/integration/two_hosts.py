"""Two hosts with a cable between them, in network namespaces: one rank on each; the cable is pulled in mid-epoch.

Runs inside of a namespace of its own: `unshare -n -p ... python -m tests.integration.two_hosts FOLDER`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.integration.noted_job import noted

HERE, THERE = "10.77.0.1", "10.77.0.2"
STEPS = 10


def ip(*words: str, inside: tuple[str, ...] = ()) -> None:
    subprocess.run([*inside, "ip", *words], check=True)


def agent(folder: Path, address: str, cable: str, inside: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    argv = [*inside, sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
    argv += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HERE}:29400", "--rdzv-id", "two"]
    # Both have this machine's name, so neither would know by itself that it is the one that others look for.
    conf = f"last_call_timeout=5,is_host={'true' if address == HERE else 'false'}"
    argv += ["--rdzv-conf", conf, "--local-addr", address, "--monitor-interval", "0.2"]
    argv += ["-m", "tests.integration.noted_job", str(folder)]
    return subprocess.Popen(argv, env={**os.environ, "GLOO_SOCKET_IFNAME": cable}, stderr=subprocess.STDOUT)


def main(folder: Path) -> int:
    other = subprocess.Popen(["unshare", "-n", "sleep", "1000"])
    inside = ("nsenter", "-t", str(other.pid), "-n")
    time.sleep(0.5)  # until it is in its namespace
    ip("link", "set", "lo", "up")
    ip("link", "add", "here", "type", "veth", "peer", "name", "there")
    ip("link", "set", "there", "netns", str(other.pid))
    ip("addr", "add", f"{HERE}/24", "dev", "here")
    ip("link", "set", "here", "up")
    ip("addr", "add", f"{THERE}/24", "dev", "there", inside=inside)
    ip("link", "set", "there", "up", inside=inside)
    ip("link", "set", "lo", "up", inside=inside)
    first = agent(folder, HERE, "here")
    second = agent(folder, THERE, "there", inside)
    while len([step for step, start, *_ in noted(folder) if start.endswith(":2")]) < 2 * STEPS:
        if first.poll() is not None or second.poll() is not None:
            return 1
        time.sleep(0.1)
    ip("link", "set", "here", "down")
    print("the cable is out", flush=True)
    code = first.wait()
    second.kill()
    other.kill()
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

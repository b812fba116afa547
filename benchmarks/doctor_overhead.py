"""What `penstock run` costs a training script: one that is supervised and one that is not, in turns of half a second.

Covers: processor time of a torch loop and of Keras's fit under supervision against alone, and what the supervisor takes
beside them, all pinned to one core.
Does not cover: scripts near their limit, where names, stacks and probes are asked for on purpose; starting up, which is
told as seconds.

    python -m benchmarks.doctor_overhead [--pairs 4] [--seconds 40] [--work torch keras]

Both processes live through the whole measurement and train only when it is their turn, so that a machine that becomes
slower is slower for both. The ratio is of sums, not of medians: walks over names are rare and long, and a median would
leave them out. They are asked for by the clock, so a turn sees its share of them; often in the first half minute and
seldom later, so short measurements see more of them than long jobs. The supervisor's own processor time is a share of
the core, and is added.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TURNS = """
import os, sys, time
go, told = open(sys.argv[1], "rb", buffering=0), open(sys.argv[2], "wb", buffering=0)
class Turns:
    def __init__(self, steps):
        self.steps, self.done, self.cpu = steps, 0, 0.0
    def step(self):
        if self.done % self.steps == 0:
            if self.done:
                told.write(b"%.9f\\n" % (time.process_time() - self.cpu))
            else:
                told.write(b"ready\\n")
            if not go.read(1):
                sys.exit(0)
            self.cpu = time.process_time()
        self.done += 1
"""
WORK = {
    "torch": """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters())
x, turns = torch.randn(256, 256), Turns(300)
for _ in range(40):
    optimizer.zero_grad(); (model(x) ** 2).mean().backward(); optimizer.step()
while True:
    turns.step()
    optimizer.zero_grad(); (model(x) ** 2).mean().backward(); optimizer.step()
""",
    "keras": """
import keras, numpy as np
turns = Turns(300)
class Turn(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        turns.step()
class Data(keras.utils.PyDataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, place):
        return x, y
x, y = np.zeros((256, 256), "float32"), np.zeros(256, "float32")
model = keras.Sequential([keras.layers.Dense(512, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, batch_size=256, epochs=40, verbose=0)
model.fit(Data(workers=0), verbose=0, shuffle=False, callbacks=[Turn()])
""",
}
RESULT = Path(__file__).parent / "results" / "doctor_overhead.json"
DRAWS = 2000


@dataclass
class Trainer:
    """A process that trains in turns; `cpu` has its processor seconds of each turn."""

    work: str
    folder: Path
    supervised: bool
    cpu: list[float] = field(default_factory=list)

    def start(self) -> None:
        name = "supervised" if self.supervised else "alone"
        paths = [self.folder / f"{name}.{end}" for end in ("go", "told")]
        for path in paths:
            os.mkfifo(path)
        command = [sys.executable, "-c", TURNS + WORK[self.work], *map(str, paths)]
        if self.supervised:
            out = str(self.folder / "run")
            command = [sys.executable, "-m", "penstock", "run", "--memory", "4GB", "--out", out, "--", *command]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        begin_s = time.perf_counter()
        self.process = subprocess.Popen(command, env={**env, "TF_CPP_MIN_LOG_LEVEL": "3"}, stderr=subprocess.DEVNULL)
        self.go, self.told = paths[0].open("wb", buffering=0), paths[1].open("rb")
        assert self.told.readline() == b"ready\n"
        self.start_s = time.perf_counter() - begin_s

    def turn(self) -> None:
        self.go.write(b"g")
        self.cpu.append(float(self.told.readline()))

    def beside(self) -> float:
        """Processor seconds so far of what supervises the script, and of the dumps that it has asked for."""
        tree = psutil.Process(self.process.pid)
        shepherd = min(tree.children(), key=lambda child: child.create_time())
        return float(sum(tree.cpu_times()[:4]) + sum(shepherd.cpu_times()[:2]))

    def end(self) -> None:
        self.go.close()
        self.process.wait(60)
        self.told.close()


def measure(work: str, seconds: float, pairs: int) -> dict[str, object]:
    """So many pairs of fresh processes, each pair in turns for so long."""
    done = [one_pair(work, seconds) for _ in range(pairs)]
    inside, low, high = ratio([pair.turns for pair in done])
    share = statistics.fmean(pair.share for pair in done)
    return {
        "pairs": pairs,
        "turns": [len(pair.turns) for pair in done],
        "script": round(inside, 4),
        "script_of_each_pair": [round(ratio([pair.turns])[0], 4) for pair in done],
        "supervisor": round(share, 4),
        "together": round(inside + share, 4),
        "interval": [round(low + share, 4), round(high + share, 4)],
        "start_s": {
            "alone": round(statistics.median(pair.alone_s for pair in done), 2),
            "supervised": round(statistics.median(pair.supervised_s for pair in done), 2),
        },
    }


@dataclass(frozen=True)
class Pair:
    """Turns of two processes (supervised, alone), the supervisor's share of the core, how long both took to start."""

    turns: list[tuple[float, float]]
    share: float
    alone_s: float
    supervised_s: float


def one_pair(work: str, seconds: float) -> Pair:
    with tempfile.TemporaryDirectory() as name:
        alone, supervised = Trainer(work, Path(name), False), Trainer(work, Path(name), True)
        for trainer in (alone, supervised):
            trainer.start()
        begin_s, beside = time.perf_counter(), supervised.beside()
        while time.perf_counter() - begin_s < seconds:
            for trainer in (alone, supervised) if len(alone.cpu) % 2 else (supervised, alone):
                trainer.turn()
        share = (supervised.beside() - beside) / (time.perf_counter() - begin_s)
        for trainer in (alone, supervised):
            trainer.end()
    return Pair(list(zip(supervised.cpu, alone.cpu)), share, alone.start_s, supervised.start_s)


def ratio(pairs: list[list[tuple[float, float]]]) -> tuple[float, float, float]:
    """The ratio of sums, and 95 % of the ratios when pairs of processes, and turns in them, are drawn again.

    Two processes of the same program differ by a percent or two for their whole lives (where things lie in memory), so
    turns of one pair alone would give an interval that is too narrow.
    """
    chance = random.Random(0)
    drawn = sorted(
        _of_sums([chance.choices(turns, k=len(turns)) for turns in chance.choices(pairs, k=len(pairs))])
        for _ in range(DRAWS)
    )
    return _of_sums(pairs), drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]


def _of_sums(pairs: list[list[tuple[float, float]]]) -> float:
    turns = [turn for pair in pairs for turn in pair]
    return sum(over for over, _ in turns) / sum(under for _, under in turns)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--work", nargs="+", choices=sorted(WORK), default=sorted(WORK))
    parser.add_argument("--keep", action="store_true", help="Write the result file")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    where = {"date": time.strftime("%Y-%m-%d"), "machine": processor(), "python": platform.python_version()}
    found = {work: {**measure(work, options.seconds, options.pairs), **where} for work in options.work}
    if options.keep:  # work that was not measured now keeps what was measured before
        before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        RESULT.write_text(json.dumps({**before, **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()

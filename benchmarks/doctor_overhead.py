"""What `penstock run` costs a training script: the same loop with and without it, in turns.

Covers: CPU seconds and wall seconds of a torch loop under supervision against alone, as interleaved ratios.
Does not cover: scripts near their limit, where names, stacks and probes are asked for on purpose.

    python -m benchmarks.doctor_overhead [--turns 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LOOP = """
import time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(256, 256)
for step in range(40):
    optimizer.zero_grad(); (model(x) ** 2).mean().backward(); optimizer.step()
start, cpu = time.perf_counter(), time.process_time()
for step in range(1500):
    optimizer.zero_grad(); (model(x) ** 2).mean().backward(); optimizer.step()
print("TOOK", time.perf_counter() - start, time.process_time() - cpu)
"""
RESULT = Path(__file__).parent / "results" / "doctor_overhead.json"


def took(supervised: bool, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the loop, as it measures itself."""
    command = [sys.executable, "-c", LOOP]
    if supervised:
        command = [sys.executable, "-m", "penstock", "run", "--memory", "4GB", "--out", str(folder), "--", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    words = next(line for line in done.stdout.splitlines() if line.startswith("TOOK")).split()
    return float(words[1]), float(words[2])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            order = (False, True) if turn % 2 == 0 else (True, False)
            found = {supervised: took(supervised, Path(folder) / "run") for supervised in order}
        ratios["wall"].append(found[True][0] / found[False][0])
        ratios["cpu"].append(found[True][1] / found[False][1])
        print(f"turn {turn}: wall {ratios['wall'][-1]:.3f}, cpu {ratios['cpu'][-1]:.3f}", flush=True)
    summary = {name: {"median": statistics.median(values), "all": values} for name, values in ratios.items()}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({name: round(values["median"], 4) for name, values in summary.items()}))


if __name__ == "__main__":
    main()

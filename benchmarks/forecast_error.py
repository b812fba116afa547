"""How far forecasts are off: predicted against really measured peaks.

Run: python benchmarks/forecast_error.py [STACK or STACK/MODEL ...]      such as torch or keras-jax/cnn; default: all
Writes benchmarks/results/forecast_error.json and .md; what is not named keeps its numbers, date and machine.
Covers: the models that the choice of probes was tuned on and others that it was not (forecast_models.py), whole
batches, batches in parts, bfloat16 and rematerialisation.
Does not cover: devices.

A forecast's probes may run half of the batch at most, and stop earlier where their time is up. What is measured is a
process that trains three guarded steps: its highest anonymous memory (the kernel's mark of resident memory of that
process image alone, VmHWM, mapped files taken off; ru_maxrss would keep the parent's over exec). Memory does not depend
on the machine's load, so two lines are measured at a time.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.forecast_models import HELD_OUT, TUNED, batch, builder, name_of  # noqa: E402
from benchmarks.report import machine  # noqa: E402

STACKS = ("torch", "keras-torch", "keras-tensorflow", "keras-tensorflow-onednn", "keras-jax")
"""TensorFlow turns oneDNN on by itself on some processors. With it comes a pool that keeps a step's memory."""
MODELS = (*TUNED, *HELD_OUT)
COMPARED = ("cnn", "resnet")
"""Models whose other settings are forecast and run too."""
BATCH, MICRO, PROBED, STEPS, JOBS = 256, 64, 128, 3, 2
STEADY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
RESULTS = ROOT / "benchmarks/results/forecast_error.json"
WAYS = {
    "whole": "whole batch",
    "split": f"in parts of {MICRO}",
    "bf16": "bfloat16",
    "remat": "rematerialised",
    "loose": "default malloc",
}
STATED = ("whole", "split", "bf16", "remat")
AIM = 0.10

Row = dict[str, Any]


def predict(stack: str, kind: str) -> dict[str, Any]:
    """Forecast the batch, whole and in parts; for some models the other settings, as a plain forecast compares them."""
    from penstock.guard.forecast.forecast import ForecastOptions, forecast

    backend = None if stack == "torch" else backend_of(stack)
    options = ForecastOptions(batch=BATCH, backend=backend, probe_rows=PROBED, timeout_s=1800)
    name = f"{Path(__file__).parent / 'forecast_models.py'}:{name_of(stack, kind)}"
    example = batch(stack, kind, 32)
    only: dict[str, Any] = {} if kind in COMPARED else {"precision": "float32", "remat": False}
    found = forecast(name, example, options=options, **only)
    said = {"whole": found.peak(), "split": found.peak(micro=MICRO), "source": found.costs[0].source}
    said["notes"] = list(found.notes)
    known = [str(setting) for setting in found.settings]
    if "mixed_bfloat16" in known:
        said["bf16"] = found.peak(precision="mixed_bfloat16", remat=False)
    if "float32 + remat" in known:
        said["remat"] = found.peak(remat=True)
    return said


def real(stack: str, kind: str, way: str) -> int:
    """Train some guarded steps in this process and tell its peak."""
    data = batch(stack, kind, BATCH)
    micro = MICRO if way == "split" else BATCH
    precision, remat = "mixed_bfloat16" if way == "bf16" else "float32", way == "remat"
    made = builder(stack, kind)()
    if stack == "torch":
        import torch

        from penstock.guard import Guard

        model, loss = made if isinstance(made, tuple) else (made, torch.nn.CrossEntropyLoss())
        optimizer = torch.optim.AdamW(model.parameters())
        guard = Guard(model, optimizer, micro_batch=micro, precision=precision, remat=remat)
        for _ in range(STEPS):
            guard.step(data, loss)
    else:
        from penstock.guard import fit

        fit(made, [data] * STEPS, micro_batch=micro, precision=precision, remat=remat)
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return (int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0])) * 1024


def backend_of(stack: str) -> str:
    """Keras' name for it."""
    return stack.removeprefix("keras-").removesuffix("-onednn")


def in_child(stack: str, kind: str, way: str) -> Any:
    """Train in a process of its own and return its peak; or forecast, for which oneDNN is turned on or off too."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": str(int(stack.endswith("-onednn")))}
    if way != "predict":
        env |= {"OMP_WAIT_POLICY": "PASSIVE", "KERAS_BACKEND": backend_of(stack), **({} if way == "loose" else STEADY)}
    command = [sys.executable, "-W", "ignore", __file__, "real", stack, kind, way]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind} on {stack}, {WAYS.get(way, way)}, failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(stack: str, kind: str) -> Row:
    """One model on one stack. Parts and the default allocator are looked at with some models."""
    said = in_child(stack, kind, "predict")
    ways = ["whole"]
    ways += ["split"] if kind in ("cnn", *HELD_OUT) else []
    ways += [way for way in ("bf16", "remat") if way in said]
    ways += ["loose"] if kind == "cnn" and stack in ("torch", "keras-tensorflow") else []
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    row = {"stack": stack, "model": kind, "date": date, "where": whereabouts(), "said": said}
    row["real"] = {way: in_child(stack, kind, way) for way in ways}
    print(json.dumps(row), flush=True)
    return row


def whereabouts() -> str:
    """The processor, and what oneDNN was told about it: kernels and their working memory depend on both."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    return f"{machine()['cpu']}{f', ONEDNN_MAX_CPU_ISA={isa}' if isa else ''}"


def stated(rows: list[Row]) -> dict[str, float]:
    """The error that forecasts state for a framework: the worst of all of its rows, rounded up to a whole percent."""
    found: dict[str, float] = {}
    for stack, miss in worst(rows, MODELS, STATED).items():
        name = stack.removesuffix("-onednn")  # a forecast does not say which of the two it is for
        found[name] = max(found.get(name, 0.0), math.ceil(miss * 100) / 100)
    return found


def misses(row: Row) -> dict[str, float]:
    """How far each forecast was off, as a share of what was measured."""
    return {way: row["said"]["whole" if way == "loose" else way] / row["real"][way] - 1 for way in row["real"]}


def worst(rows: list[Row], kinds: tuple[str, ...], ways: tuple[str, ...]) -> dict[str, float]:
    """The largest miss by stack, of some models in some settings."""
    found: dict[str, float] = {}
    for row in rows:
        some = [abs(miss) for way, miss in misses(row).items() if way in ways and row["model"] in kinds]
        if some:
            found[row["stack"]] = max([found.get(row["stack"], 0.0), *some])
    return found


def lines(rows: list[Row]) -> str:
    """The results as a Markdown table."""
    out = ["| stack | model | | how | forecast | measured | error | date | machine |", "|---" * 9 + "|"]
    for row in rows:
        group = "held out" if row["model"] in HELD_OUT else "tuned on"
        for way, miss in misses(row).items():
            said, found = row["said"]["whole" if way == "loose" else way], row["real"][way]
            missed = " **over 10 %**" if abs(miss) > AIM and way != "loose" else ""
            cells = [row["stack"], row["model"], group, WAYS[way], f"{said / 1e6:.0f} MB", f"{found / 1e6:.0f} MB"]
            out.append("| " + " | ".join([*cells, f"{miss:+.1%}{missed}", row["date"], row["where"]]) + " |")
    return "\n".join(out)


def summary(rows: list[Row]) -> str:
    """The worst errors by stack."""
    groups = (
        ("models tuned on", TUNED, ("whole", "split")),
        ("held-out models", HELD_OUT, ("whole", "split")),
        ("bfloat16, all models", MODELS, ("bf16",)),
        ("rematerialisation, all models", MODELS, ("remat",)),
    )
    out = ["| worst error | " + " | ".join(STACKS) + " |", "|---" * (len(STACKS) + 1) + "|"]
    for name, kinds, ways in groups:
        found = worst(rows, kinds, ways)
        out.append(f"| {name} | " + " | ".join(f"{found[s]:.1%}" if s in found else "-" for s in STACKS) + " |")
    by_framework = stated(rows)
    all_of = {s: by_framework[s.removesuffix("-onednn")] for s in STACKS if s.removesuffix("-onednn") in by_framework}
    out.append(
        "| stated by forecasts | " + " | ".join(f"{all_of[s]:.0%}" if s in all_of else "-" for s in STACKS) + " |"
    )
    return "\n".join(out)


def page(rows: list[Row]) -> str:
    """The results for people."""
    return (
        f"# Forecast against measured peak\n\nBatch {BATCH}, AdamW; probes of at most {PROBED} rows; {STEPS} guarded "
        f"steps. The aim is 10 %. Each number is one run, of the day and on the machine beside it. Written by "
        f"`benchmarks/forecast_error.py`.\n\n{summary(rows)}\n\n"
        "How probes are chosen was tuned on some of the models; the held-out ones were added afterwards. bfloat16 and "
        "rematerialisation are forecast as a plain `forecast` compares them, with smaller probes.\n\n"
        f"{lines(rows)}\n\n"
        '"Default malloc" is the same training without MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_, for which '
        "forecasts do not hold; it is not in the worst errors.\n"
    )


def bfloat16_works() -> dict[str, str]:
    """What the environment needs so that bfloat16 runs: on some virtual machines AMX is announced and then illegal."""
    script = "import torch; x = torch.ones(64, 64).bfloat16(); torch.nn.functional.linear(x, x)"
    died = subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGILL
    return {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"} if died else {}


def write(rows: list[Row]) -> None:
    """The numbers and the page, from the numbers alone."""
    rows.sort(key=lambda row: (STACKS.index(row["stack"]), MODELS.index(row["model"])))
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(rows))


def main(words: list[str]) -> None:
    """Measure, and write the page after each line."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows: list[Row] = known["rows"] if isinstance(known, dict) and "rows" in known else []
    todo = [pair for word in words for pair in pairs(word)]
    os.environ |= bfloat16_works()
    with ThreadPoolExecutor(JOBS) as pool:
        for future in as_completed([pool.submit(measure, *pair) for pair in todo]):
            found = future.result()
            rows = [row for row in rows if (row["stack"], row["model"]) != (found["stack"], found["model"])]
            rows.append(found)
            write(rows)


def pairs(word: str) -> list[tuple[str, str]]:
    """'torch' is all of its models, 'torch/cnn' one."""
    stack, _, kind = word.partition("/")
    if stack not in STACKS or kind not in ("", *MODELS):
        raise SystemExit(f"{word!r} is none of {', '.join(STACKS)}, alone or with one of /{', /'.join(MODELS)}.")
    return [(stack, name) for name in MODELS if kind in ("", name)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["real"]:
        print(json.dumps(predict(*sys.argv[2:4]) if sys.argv[4] == "predict" else real(*sys.argv[2:5])))
    else:
        main(sys.argv[1:] or [f"{stack}/{kind}" for kind in (*HELD_OUT, *TUNED) for stack in STACKS])

"""What the Ray tests run inside of a network of their own: a cluster of two nodes, and one case on it.

`python -m tests.integration.ray_job FOLDER CASE` prints what it saw as JSON. Processes are killed here, because outside
of the namespace they have other numbers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROWS, EPOCHS, WHOLE = 151, 2, 12
FAR = "far"
"""A resource that only the second node has."""


def main(folder: Path, case: str) -> None:
    import ray
    from ray.cluster_utils import Cluster

    nearby = {"num_cpus": 3, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=nearby)
    distant = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={FAR: 1})
    ray.init(address=cluster.address, log_to_driver=True)
    found = CASES[case](folder, cluster, distant)
    print(json.dumps(found), flush=True)
    ray.shutdown()
    cluster.shutdown()


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int64), np.arange(ROWS)


class Noted:
    """Batches without their row numbers, which are kept as they are taken."""

    def __init__(self, ds: Any, last: list[int]) -> None:
        self.ds, self.last = ds, last

    def __iter__(self) -> Iterator[Any]:
        return _Noting(iter(self.ds), self.last)

    def resume(self, position: Any) -> Noted:
        return Noted(self.ds.resume(position), self.last)


class _Noting(Iterator[Any]):
    def __init__(self, batches: Any, last: list[int]) -> None:
        self._batches, self._last = batches, last

    def __next__(self) -> Any:
        x, y, numbers = next(self._batches)
        self._last[:] = numbers.tolist()
        return x, y

    @property
    def position(self) -> Any:
        return self._batches.position


def note(folder: str, rank: int, step: int, rows: list[int]) -> None:
    """Rows of one step, on disk before the next one: a rank may be killed at any time."""
    with open(f"{folder}/seen-{rank}.jsonl", "a") as file:
        file.write(json.dumps([step, rows]) + "\n")
    rows.clear()


def once(folder: str, name: str) -> bool:
    """True for the first who asks."""
    try:
        Path(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fit_rank(config: dict[str, Any]) -> None:
    """`ps.fit` on one rank; at step `dies_at` rank 1 is killed, once."""
    from penstock.core.world import WorldError
    from penstock.distribute.join import join
    from penstock.guard.ranks.agree import find_ranks

    backend, folder = config["backend"], config["folder"]
    os.environ["KERAS_BACKEND"] = backend
    import keras
    from ray import train

    import penstock as ps

    def made() -> Any:
        model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    last: list[int] = []
    ds = Noted(ps.from_tensor_slices(data()).shuffle(seed=3).batch(WHOLE // size), last)
    if backend == "jax":
        try:
            find_ranks("jax")  # what `fit` asks first; a model of JAX would make joining impossible
        except WorldError as error:
            Path(folder, f"refused-{rank}").write_text(str(error))
        else:
            raise AssertionError("two copies would train side by side")
    world = join(backend)
    keras.utils.set_random_seed(1)
    model = made()

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            note(folder, world.rank, step, last)
            time.sleep(config.get("pause_s", 0))
            if step == config.get("dies_at") and world.rank == 1 and once(folder, "died"):
                os.kill(os.getpid(), signal.SIGKILL)

    ps.fit(model, ds, epochs=EPOCHS, callbacks=[Notes()], checkpoint=f"{folder}/saved", checkpoint_steps=3, resume=True)
    weights = [float(np.asarray(keras.ops.convert_to_numpy(w)).sum()) for w in model.weights]
    Path(folder, f"done-{rank}.json").write_text(json.dumps({"world": world.size, "weights": weights}))


def guard_rank(config: dict[str, Any]) -> None:
    """`ps.Guard` in a plain loop, saved by Ray's own checkpoints: every rank's position in each."""
    import torch
    from ray import train

    import penstock as ps

    folder, context = config["folder"], train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = ps.Guard(model, optimizer)
    ds = ps.from_tensor_slices(data()).shuffle(seed=3).batch(WHOLE // size)
    step, saved = 0, train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as there:
            state = json.loads(Path(there, f"rank-{rank}.json").read_text())
            model.load_state_dict(torch.load(f"{there}/model.pt"))
        step, ds = state["step"], ds.resume(state["position"])
    batches = iter(ds)
    for batch in guard.epoch(batches):
        numbers = [] if repr(batch) == "no rows" else batch[2].tolist()
        guard.step(batch if not numbers else batch[:2], torch.nn.functional.cross_entropy)
        step += 1
        note(folder, rank, step, numbers)
        with tempfile.TemporaryDirectory() as here:
            Path(here, f"rank-{rank}.json").write_text(json.dumps({"step": step, "position": batches.position}))
            if rank == 0:
                torch.save(model.state_dict(), f"{here}/model.pt")
            train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(here))
        if step == 4 and rank == 1 and once(folder, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
    weights = [float(value.sum()) for value in model.state_dict().values()]
    Path(folder, f"done-{rank}.json").write_text(json.dumps({"world": size, "weights": weights}))


def trained(folder: Path, function: Callable[[dict[str, Any]], None], trainer: Any, **config: Any) -> dict[str, Any]:
    """Two ranks of a function under a trainer of Ray, and what they left behind."""
    from ray import train

    folder.mkdir()
    trainer(
        function,
        train_loop_config={"folder": str(folder), **config},
        # One rank on each node, as long as there are two.
        scaling_config=train.ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=train.RunConfig(
            storage_path=str(folder / "ray"), failure_config=train.FailureConfig(max_failures=3)
        ),
    ).fit()
    return left_behind(folder)


def left_behind(folder: Path) -> dict[str, Any]:
    lines = [[json.loads(line) for line in path.open()] for path in sorted(folder.glob("seen-*.jsonl"))]
    steps = [dict(map(tuple, rank)) for rank in lines]  # a step that was taken again counts as it was taken last
    return {
        "rows": sorted(row for rank in steps for rows in rank.values() for row in rows),
        "again": [len(rank) - len(kept) for rank, kept in zip(lines, steps, strict=True)],
        "done": [json.loads(path.read_text()) for path in sorted(folder.glob("done-*.json"))],
        "refused": [path.read_text() for path in sorted(folder.glob("refused-*"))],
        "died": (folder / "died").exists(),
    }


def inside_trainers(folder: Path, cluster: Any, distant: Any) -> dict[str, Any]:
    """`ps.fit` and `ps.Guard` inside of TorchTrainer with a rank killed, `ps.fit` on JAX."""
    from ray.train.torch import TorchTrainer
    from ray.train.v2.jax import JaxTrainer

    return {
        "fit": trained(folder / "fit", fit_rank, TorchTrainer, backend="torch", dies_at=8),
        "guard": trained(folder / "guard", guard_rank, TorchTrainer),
        "jax": trained(folder / "jax", fit_rank, JaxTrainer, backend="jax"),
    }


def node_lost(folder: Path, cluster: Any, distant: Any) -> dict[str, Any]:
    """One of two nodes is taken away in the middle of an epoch."""
    import threading

    from ray.train.torch import TorchTrainer

    def lose() -> None:
        seen = folder / "fit" / "seen-1.jsonl"
        while not seen.exists() or seen.read_text().count("\n") < 5:
            time.sleep(0.05)
        cluster.remove_node(distant, allow_graceful=False)
        once(str(folder / "fit"), "died")

    thread = threading.Thread(target=lose)
    thread.start()
    found = trained(folder / "fit", fit_rank, TorchTrainer, backend="torch", pause_s=0.3)
    thread.join()
    return found


def data_and_shards(folder: Path, cluster: Any, distant: Any) -> dict[str, Any]:
    """`from_ray`, and `penstock pack --cluster`."""
    import ray

    import penstock as ps

    raw = ray.data.range(3000, override_num_blocks=7).map_batches(
        lambda rows: {"id": rows["id"], "x": np.stack([rows["id"] + n for n in range(3)], 1).astype(np.float32)}
    )
    ds = ps.from_ray(raw).batch(100)
    batches, seen, positions = iter(ds), [], []
    for batch in batches:
        seen.append(batch["id"].tolist())
        positions.append(batches.position)
    rest = [batch["id"].tolist() for batch in ds.resume(positions[11])]
    try:
        ps.from_ray(raw.streaming_split(1)[0])
        refused = ""
    except ps.PenstockError as error:
        refused = str(error)

    def broken(rows: Any) -> Any:
        raise ValueError("no such thing")

    try:
        list(ps.from_ray(ray.data.range(10).map_batches(broken)))
        failed = ""
    except ps.PenstockError as error:
        failed = str(error)
    table = folder / "table.csv"
    table.write_text("n\n" + "\n".join(map(str, range(5000))) + "\n")
    packed = folder / "packed"
    argv = [sys.executable, "-m", "penstock", "pack", str(table), str(packed), "--shard-size", "4KB"]
    argv += ["--cluster", cluster.address, "--parts"]
    first = subprocess.run([*argv, "3"], capture_output=True, text=True)
    other = subprocess.run([*argv, "4"], capture_output=True, text=True)
    labelled = next(iter(ps.from_ray(raw, features="x", label="id").batch(5)))
    return {
        "seen": seen,
        "rest": rest,
        "x": next(iter(ds))["x"][:2].tolist(),
        "labelled": [labelled[0].tolist(), labelled[1].tolist()],
        "refused": refused,
        "failed": failed,
        "pack": [first.returncode, first.stdout, first.stderr[-2000:]],
        "other": [other.returncode, other.stderr],
        "packed": sorted(int(row["n"]) for row in ps.read_parquet(packed)),
        "parts": sorted(path.name for path in packed.glob("part-*")),
    }


def train_command(folder: Path, cluster: Any, distant: Any) -> dict[str, Any]:
    """`penstock train`: calm on torchrun, with a rank killed on Ray, and stopped by Ctrl-C on Ray."""
    from penstock.watch.run_folder import read_events

    table = folder / "t.csv"
    draw = np.random.default_rng(1).normal(size=(1500, 3))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{int(a + b > 0)}" for a, b, c in draw]
    table.write_text("a,b,c,label\n" + "\n".join(lines) + "\n")
    argv = [sys.executable, "-m", "penstock", "train", "t.csv", "--backend", "torch", "--workers", "2"]
    argv += ["--batch", "64", "--checkpoint-minutes", "0.01"]
    ray = ["--engine", "ray", "--cluster", cluster.address]

    def pids(out: str, rank: str, kind: str) -> list[int]:
        there = folder / out / rank / "events.jsonl"
        return [e.get("pid", 0) for e in read_events(there.parent) if e["kind"] == kind] if there.exists() else []

    def started(out: str, *more: str) -> Any:
        whole = [*argv, "--out", out, *more]
        return subprocess.Popen(whole, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait_for(process: Any, out: str, kind: str) -> None:
        while not pids(out, ".", kind):
            assert process.poll() is None, process.communicate()[0][-3000:]
            time.sleep(0.05)

    calm, jax = started("calm", "--epochs", "3"), started("jax", "--epochs", "1", *ray, "--backend", "jax")
    assert calm.wait(200) == 0, calm.communicate()[0][-3000:]
    told = jax.communicate()[0][-3000:]
    torn = started("torn", "--epochs", "3", *ray)
    wait_for(torn, "torn", "train.epoch")
    os.kill(pids("torn", "ranks/1", "run.start")[-1], signal.SIGKILL)
    code, out = torn.wait(280), torn.communicate()[0]
    stopped = started("stopped", "--epochs", "200", *ray)
    wait_for(stopped, "stopped", "train.epoch")
    stopped.send_signal(signal.SIGINT)
    histories = [json.loads((folder / name / "metrics.json").read_text())["history"] for name in ("calm", "torn")]
    return {
        "histories": histories,
        "jax": [jax.returncode, told],
        "torn": [code, out[-2000:]],
        "attempts": len(pids("torn", "ranks/1", "run.start")),
        "stopped": [stopped.wait(100), stopped.communicate()[0][-2000:]],
        "saved": len(list((folder / "stopped" / "checkpoints").iterdir())),
    }


CASES: dict[str, Callable[[Path, Any, Any], dict[str, Any]]] = {
    "trainers": inside_trainers,
    "node": node_lost,
    "data": data_and_shards,
    "command": train_command,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

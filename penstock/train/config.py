"""What a run was asked to do, as it is kept in its folder.

Covers: the options of a run, checking them, config.json.
Does not cover: the command line (cli/train.py), what was learned from the data (recipe.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.durable import private_folder, write_private
from penstock.core.errors import InvalidInput, NotFound
from penstock.core.secrets import without_secrets
from penstock.core.sizes import option_size, parse_size
from penstock.core.sizes import size as written_size
from penstock.watch.run_folder import CONFIG

BACKENDS = ("tensorflow", "torch", "jax")
PRECISIONS = {"auto": "auto", "float32": None, "mixed": "mixed_bfloat16"}
"""What the command calls a precision, and what the guard calls it; None leaves the model's own."""
TASKS = ("auto", "classes", "number")
ENGINES = ("torchrun", "ray")
MODELS = ("cnn", "mlp", "text")
LEAST_NBYTES = {"tensorflow": 400_000_000, "torch": 350_000_000, "jax": 230_000_000}
"""What no process with Keras and a backend stays below, files that the kernel can drop not counted."""
DATA_ENV = "PENSTOCK_TRAIN_DATA"
"""Where a worker finds an address with a password, which is never written down."""


@dataclass(frozen=True)
class Config:
    """One run: the data, the model, and how to train. Everything that `--resume` needs."""

    data: str
    target: str | None = None
    query: str | None = None
    model: str = "auto"
    task: str = "auto"
    image_size: int | tuple[int, int] | None = None
    """Side of square pictures, or (height, width)."""
    memory: str | None = None
    device_memory: str | None = None
    batch: int = 256
    epochs: int = 3
    learning_rate: float = 1e-3
    backend: str = "tensorflow"
    precision: str = "auto"
    val: float = 0.1
    seed: int = 0
    checkpoint_minutes: float = 1.0
    forecast: bool = True
    deterministic: bool = True
    callbacks: str | None = None
    workers: int = 1
    """Processes that train together."""
    engine: str = "torchrun"
    cluster: str | None = None
    on_error: str = "raise"
    """"skip" leaves damaged rows and files out, up to `max_errors`: a count, or below 1 a share of the rows."""
    max_errors: float | None = None

    @property
    def memory_nbytes(self) -> int | None:
        """The limit that was asked for."""
        return None if self.memory is None else parse_size(self.memory)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; a password in the data's address is left out."""
        return {**dataclasses.asdict(self), "data": without_password(self.data)}


def check(config: Config) -> Config:
    """Refuse, in a sentence, what cannot work."""
    for name, number in (("--batch", config.batch), ("--epochs", config.epochs), ("--workers", config.workers)):
        if number < 1:
            raise InvalidInput(f"{name} must be at least 1, not {number}.")
    if not 0 <= config.val <= 0.9:
        raise InvalidInput(f"--val is the share of rows kept for validation, 0 to 0.9, not {config.val}.")
    if config.backend not in BACKENDS:
        raise InvalidInput(f"--backend must be one of {', '.join(BACKENDS)}, not {config.backend!r}.")
    if config.precision not in PRECISIONS:
        raise InvalidInput(f"--precision must be one of {', '.join(PRECISIONS)}, not {config.precision!r}.")
    if config.engine not in ENGINES:
        raise InvalidInput(f"--engine must be one of {', '.join(ENGINES)}, not {config.engine!r}.")
    if config.workers > 1 and config.backend == "tensorflow":
        raise InvalidInput(
            "--workers: Keras 3 does not train across TensorFlow processes. Add --backend torch (or jax)."
        )
    if config.cluster is not None and config.engine != "ray":
        raise InvalidInput("--cluster is the address of a Ray cluster: add --engine ray.")
    if config.task not in TASKS:
        raise InvalidInput(f"--task must be one of {', '.join(TASKS)}, not {config.task!r}.")
    if config.learning_rate <= 0:
        raise InvalidInput(f"--learning-rate must be above 0, not {config.learning_rate:g}.")
    if config.checkpoint_minutes < 0:
        raise InvalidInput(f"--checkpoint-minutes must not be below 0, but is {config.checkpoint_minutes:g}.")
    sides = config.image_size if isinstance(config.image_size, tuple) else (config.image_size or 1,)
    if min(sides) < 1 or config.image_size == 0:
        raise InvalidInput(f"--image-size must be at least 1, not {config.image_size}.")
    if config.on_error not in ("raise", "skip"):
        raise InvalidInput(f"--on-error must be raise or skip, not {config.on_error!r}.")
    if config.max_errors is not None and (config.max_errors < 0 or config.on_error != "skip"):
        raise InvalidInput("--max-errors is a count, or below 1 a share of the rows, and goes with --on-error skip.")
    _check_memory(config)
    _check_model(config.model)
    if config.callbacks is not None:
        _check_code("--callbacks", config.callbacks, "returns them")
    return config


def _check_memory(config: Config) -> None:
    if config.device_memory is not None:
        option_size("--device-memory", config.device_memory)
    if config.memory is None:
        return
    if option_size("--memory", config.memory) < LEAST_NBYTES[config.backend]:
        least = written_size(LEAST_NBYTES[config.backend])
        raise InvalidInput(
            f"--memory {config.memory} is too little: Keras with {config.backend} alone takes about {least}. "
            f"Give at least 1GB, or try --backend jax, which takes the least."
        )


def _check_model(model: str) -> None:
    if model in ("auto", *MODELS):
        return
    name, colon, _ = model.rpartition(":")
    path = Path(name if colon and name.endswith(".py") else model)
    if path.suffix not in (".py", ".keras"):
        raise InvalidInput(f"--model must be {', '.join(MODELS)}, module.py:build or file.keras, not {model!r}.")
    if path.suffix == ".py":
        _check_code("--model", model, "builds the model")
    if not path.exists():
        raise NotFound(f"--model: there is no file {path}.")


def _check_code(option: str, text: str, does: str) -> None:
    """Refuse what is not `module.py:function` of a file that is there. The file itself is run by the worker."""
    name, colon, function = text.rpartition(":")
    if not (colon and name.endswith(".py") and function):
        bare = text.rstrip(":")
        example = f"{bare}:build" if bare.endswith(".py") else "module.py:function"
        raise InvalidInput(f"{option} {text}: name the function that {does}, as in {example}.")
    if not Path(name).exists():
        raise NotFound(f"{option}: there is no file {name}.")


def parse_image_size(text: str) -> int | tuple[int, int]:
    """The side of square pictures, "128", or height and width, "24x48".

    >>> parse_image_size("128"), parse_image_size("24x48")
    (128, (24, 48))
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise InvalidInput(f"--image-size is a side such as 128, or height x width such as 24x48, not {text!r}.")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def write_config(folder: Path, config: Config) -> None:
    """Keep the options, whole or not at all."""
    private_folder(folder)
    write_json(folder / CONFIG, config.as_dict())


def read_config(folder: Path) -> Config:
    """The options of an earlier run; an address whose password was left out comes from the environment."""
    path = folder / CONFIG
    if not path.exists():
        raise NotFound(f"{folder} is not a run folder: it has no {CONFIG}. Give the folder of an earlier run to --out.")
    try:
        values = json.loads(path.read_text())
        known = {field.name for field in dataclasses.fields(Config)}
        config = Config(**{name: value for name, value in values.items() if name in known})
        if isinstance(config.image_size, list):  # what JSON makes of a tuple
            config = dataclasses.replace(config, image_size=tuple(config.image_size))
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    given = os.environ.get(DATA_ENV)
    return config if given is None else dataclasses.replace(config, data=given)


def refuse_foreign_code(folder: Path, config: Config) -> None:
    """Code that a run folder names is run when the run goes on, but only if no other user could have named it."""
    named = [name for name in (config.model, config.callbacks) if name and ".py" in name]
    if not named or os.name != "posix":
        return
    for path in (folder, folder / CONFIG):
        about = path.stat()
        if about.st_uid == os.getuid() and not about.st_mode & 0o022:
            continue
        whose = "belongs to another user" if about.st_uid != os.getuid() else "can be written by others"
        raise InvalidInput(
            f"{path} {whose}, and going on would run code that it names: {' and '.join(named)}. Look at it, then give "
            f"--trust."
        )


def new_folder(data: str, root: Path = Path("runs")) -> Path:
    """A folder for a run without a name: after the data and the time, so that runs sort."""
    bare = re.sub(r"[?#].*$", "", data).rstrip("/")
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(bare).name.split(".")[0]).strip("-") or "run"
    base = root / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def without_password(text: str) -> str:
    """An address without the secrets in it; anything else as it is."""
    return without_secrets(text)


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file that is whole or not there."""
    write_private(path, json.dumps(values, indent=1, allow_nan=False) + "\n")

"""Training that fits: forecasts, micro-batches, recovery, checkpoints. Frameworks are imported when they are used."""

from penstock.guard.devices import setup_devices
from penstock.guard.fit import fit
from penstock.guard.infer import evaluate, predict
from penstock.guard.loop import Guard
from penstock.guard.loop_jax import JaxGuard
from penstock.guard.optimizer_memory import lean_optimizer
from penstock.guard.supervise import supervise

__all__ = ["Guard", "JaxGuard", "evaluate", "fit", "lean_optimizer", "predict", "setup_devices", "supervise"]

"""Training that fits: forecasts, micro-batches, recovery, checkpoints. Frameworks are imported when they are used."""

from penstock.guard.devices import setup_devices
from penstock.guard.fit import fit
from penstock.guard.jax.guard import JaxGuard
from penstock.guard.keras.predict import evaluate, predict
from penstock.guard.optimizer_memory import lean_optimizer
from penstock.guard.supervise import supervise
from penstock.guard.torch.guard import Guard

__all__ = ["Guard", "JaxGuard", "evaluate", "fit", "lean_optimizer", "predict", "setup_devices", "supervise"]

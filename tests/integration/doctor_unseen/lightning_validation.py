"""validation_step keeps logits for a metric over the whole epoch, as the migration guide to 2.0 shows."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Tagger(pl.LightningModule):
    def __init__(self, classes=5_000):
        super().__init__()
        self.net = torch.nn.Linear(32, classes)
        self.kept = []

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.kept.append((self.net(x), y))

    def on_validation_epoch_end(self):
        scores = torch.cat([s for s, _ in self.kept])
        targets = torch.cat([t for _, t in self.kept])
        self.log("acc", (scores.argmax(-1) == targets).float().mean())
        self.kept.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def rows(n):
    return TensorDataset(torch.randn(n, 32), torch.randint(0, 5_000, (n,)))


trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    num_sanity_val_steps=0,
)
trainer.fit(Tagger(), DataLoader(rows(640), batch_size=64), DataLoader(rows(60_000), batch_size=64))

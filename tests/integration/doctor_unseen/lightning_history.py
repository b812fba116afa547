"""A LightningModule notes what its layers gave at each step and never empties the note."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class LitRegressor(pl.LightningModule):
    def __init__(self, width=1024):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = torch.nn.Linear(64, width)
        self.head = torch.nn.Linear(width, 1)
        self.training_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = torch.relu(self.encoder(x))
        loss = F.mse_loss(self.head(z).squeeze(-1), y)
        self.training_step_outputs.append({"loss": loss.detach(), "z": z.detach()})
        return loss

    def on_train_epoch_end(self):
        mean = torch.stack([o["loss"] for o in self.training_step_outputs]).mean()
        self.log("epoch_loss", mean)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.seed_everything(0)
data = TensorDataset(torch.randn(20_000, 64), torch.randn(20_000))
trainer = pl.Trainer(
    max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(LitRegressor(), DataLoader(data, batch_size=256))

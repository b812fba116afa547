"""Lightning."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, place):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def validation_step(self, batch, place):
        x, y = batch
        self.log("val", torch.nn.functional.mse_loss(self.layer(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Line(), DataLoader(data, 64), DataLoader(data, 64))
print("steps", trainer.global_step)

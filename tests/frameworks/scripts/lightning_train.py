"""As its user would write it for Lightning; rank 1 fails at step 6 as it is told to."""

import os
import sys
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

HARM = sys.argv[1]


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first and self.global_rank == 1 and self.global_step == 6:
            if HARM == "crash":
                raise RuntimeError("a broken batch")
            time.sleep(3600)  # a lost mount
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=8)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=12,
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(dirpath="saved", every_n_train_steps=2, save_last=True)],
)
trainer.fit(Model(), data, ckpt_path="last")
print(f"trained to step {trainer.global_step}")

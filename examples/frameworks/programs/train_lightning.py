"""A line, fitted by PyTorch Lightning; it writes to lightning_logs, as it does by default."""

import argparse
import glob
import os
import time

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(L.LightningModule):
    def __init__(self, pause):
        super().__init__()
        self.layer, self.pause = torch.nn.Linear(1, 1), pause

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss)
        return loss

    def on_train_epoch_start(self):
        time.sleep(self.pause)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=1)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds before each epoch")
args = parser.parse_args()

L.seed_everything(1)
inputs = torch.linspace(-1, 1, 64).reshape(-1, 1)
data = DataLoader(TensorDataset(inputs, 3 * inputs + 1), batch_size=8)
former = max(glob.glob("lightning_logs/*/checkpoints/*.ckpt"), key=os.path.getmtime, default=None)
model = Line(args.pause)
trainer = L.Trainer(max_epochs=args.epochs, num_nodes=args.nodes, accelerator="auto", enable_progress_bar=False)
trainer.fit(model, data, ckpt_path=former)
weight = round(model.layer.weight.item(), 1)
print("rank", trainer.global_rank, "of", trainer.world_size, "weight", weight, "from", former)

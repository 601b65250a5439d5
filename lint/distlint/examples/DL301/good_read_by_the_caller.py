import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def test_step(self, batch, batch_idx):
        self.outputs.append(self(batch).cpu())


def predictions(trainer, model, loader):
    trainer.test(model, loader)
    return torch.cat(model.outputs)

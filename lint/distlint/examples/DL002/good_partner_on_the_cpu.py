import torch
from lightning.pytorch import LightningModule


class Confusion(LightningModule):
    def test_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x).cpu()
        table = torch.zeros(10, 10)
        for truth, guess in zip(y.tolist(), scores.argmax(-1).tolist()):
            table[truth, guess] += 1
        return {"table": table, "scores": scores * torch.linspace(0, 1, 10)}

import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def gathered(self, values):
        return self.all_gather(torch.stack(values)).flatten(0, 1)

    def on_test_epoch_end(self):
        scores = self.gathered(self.scores)
        self.scores.clear()
        self.print("best", scores.max().item())

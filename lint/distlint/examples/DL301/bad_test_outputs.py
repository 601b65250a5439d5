import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def test_step(self, batch, batch_idx):
        inputs, targets = batch
        kept = {"predicted": self(inputs).cpu(), "wanted": targets.cpu()}
        self.outputs.append(kept)  # expect: DL301 nothing empties it: clear() it

    def on_test_epoch_end(self):
        predicted = torch.cat([each["predicted"] for each in self.outputs])
        wanted = torch.cat([each["wanted"] for each in self.outputs])
        print("error", (predicted - wanted).abs().mean())

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule


class LanguageModel(LightningModule):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def _loss(self, batch):
        logits = self.decoder(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def test_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("test/loss", loss, sync_dist=True)
        self.log("test/ppl", torch.exp(loss), sync_dist=True)  # expect: DL201 then take exp

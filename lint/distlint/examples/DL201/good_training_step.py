import torch
from lightning.pytorch import LightningModule


class LanguageModel(LightningModule):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        loss = self.decoder(**batch).loss
        ppl = torch.exp(loss.detach())
        self.log("train/ppl", ppl, on_step=False, on_epoch=True, sync_dist=True)
        return loss

import torch
from pytorch_lightning import LightningModule
from torch.nn import functional as F


class Lesions(LightningModule):
    def training_step(self, batch, batch_idx):
        image, mask = batch["image"], batch["mask"]
        weights = torch.tensor([0.2, 0.8])  # expect: DL002 meets
        loss = F.cross_entropy(self(image), mask, weight=weights)
        self.log("train_loss", loss)
        return loss

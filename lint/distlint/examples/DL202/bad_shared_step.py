import torch.nn as nn
from pytorch_lightning import LightningModule, Trainer


class Segmenter(LightningModule):
    def __init__(self):
        super().__init__()
        self.criterion = nn.BCEWithLogitsLoss()

    def _shared_step(self, batch, stage):
        image, mask = batch
        loss = self.criterion(self(image), mask)
        self.log(f"{stage}_loss", loss, on_epoch=True)  # expect: DL202 rank 0's share of the
        return loss

    def training_step(self, batch, batch_idx):
        return self._shared_step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self._shared_step(batch, "val")


trainer = Trainer(gpus=2, accelerator="ddp", max_epochs=50)

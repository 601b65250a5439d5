import pytorch_lightning as pl
import torch.nn.functional as F


class Classifier(pl.LightningModule):
    def _step(self, batch, stage):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log(f"{stage}/loss", loss, sync_dist=True)  # expect: DL302 every rank waits here in
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self._step(batch, "val")


pl.Trainer(gpus=8, strategy="ddp").fit(Classifier())

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer


class Classifier(LightningModule):
    def training_step(self, batch, batch_idx):
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("val_loss", loss, prog_bar=True)  # expect: DL202 average over ranks by sync_dist=True


Trainer(devices=4, strategy="ddp").fit(Classifier())

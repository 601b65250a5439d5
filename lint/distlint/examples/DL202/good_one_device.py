import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer


class Classifier(LightningModule):
    def validation_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("val_loss", loss, prog_bar=True)


Trainer(accelerator="gpu", devices=1, max_epochs=10).fit(Classifier())

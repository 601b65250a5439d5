import torch.nn.functional as F
from pytorch_lightning import LightningModule, Trainer


class Classifier(LightningModule):
    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"])
        return loss


Trainer(gpus=2, strategy="ddp").fit(Classifier())

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer


class Classifier(LightningModule):
    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.log("val_loss", F.cross_entropy(logits, labels), sync_dist=True)
        right = (logits.argmax(-1) == labels).float().mean()
        self.log_dict({"val_acc": right}, on_epoch=True, sync_dist=True)


Trainer(devices=4, strategy="ddp").fit(Classifier())

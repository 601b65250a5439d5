from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Accuracy


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="binary")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.accuracy(logits, labels)
        self.log("train_accuracy", self.accuracy, sync_dist=True)
        return self.loss(logits, labels)


Trainer(devices=4, strategy="ddp").fit(Model())

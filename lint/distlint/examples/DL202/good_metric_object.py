import torchmetrics
from lightning.pytorch import LightningModule, Trainer


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=10)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.accuracy.update(logits, labels)
        self.f1.update(logits, labels)
        self.log("val_acc", self.accuracy)

    def on_validation_epoch_end(self):
        self.log("val_f1", self.f1.compute())
        self.f1.reset()


Trainer(devices=4, strategy="ddp").fit(Classifier())

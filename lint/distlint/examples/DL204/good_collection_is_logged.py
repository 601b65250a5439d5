from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Accuracy, F1Score, MetricCollection


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        metrics = MetricCollection([Accuracy(task="binary"), F1Score(task="binary")])
        self.val_metrics = metrics.clone(prefix="val_")

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.val_metrics.update(self(images), labels)
        self.log_dict(self.val_metrics, on_step=False, on_epoch=True)


Trainer(devices=4, strategy="ddp").fit(Classifier())

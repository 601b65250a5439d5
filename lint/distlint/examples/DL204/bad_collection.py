from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Accuracy, F1Score, MetricCollection


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.metrics = MetricCollection([Accuracy(task="binary"), F1Score(task="binary")])

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        values = self.metrics(self(images), labels)
        self.log_dict(values, on_epoch=True)  # expect: DL204 update the metric object and log the


Trainer(devices=8, strategy="fsdp").fit(Classifier())

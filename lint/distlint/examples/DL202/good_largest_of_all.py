import torchmetrics
from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.worst = torchmetrics.MaxMetric()

    def validation_step(self, batch, batch_idx):
        self.worst.update(self.errors(batch).max())

    def on_validation_epoch_end(self):
        self.log("worst_error", self.worst.compute())
        self.worst.reset()


Trainer(devices=4, strategy="ddp").fit(Model())

import torchmetrics
from lightning.pytorch import LightningModule, Trainer


class Tagger(LightningModule):
    def __init__(self):
        super().__init__()
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=9, dist_sync_on_step=True)

    def validation_step(self, batch, batch_idx):
        tokens, tags = batch
        value = self.f1(self(tokens), tags)
        self.log("val_f1", value)


Trainer(devices=4, strategy="ddp").fit(Tagger())

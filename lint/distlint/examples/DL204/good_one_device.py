import torchmetrics
from lightning.pytorch import LightningModule, Trainer


class Tagger(LightningModule):
    def __init__(self):
        super().__init__()
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=9)

    def validation_step(self, batch, batch_idx):
        tokens, tags = batch
        self.log("val_f1", self.f1(self(tokens), tags))


Trainer(max_epochs=3).fit(Tagger())

import torchmetrics
from lightning.pytorch import LightningModule, Trainer


class Tagger(LightningModule):
    def __init__(self):
        super().__init__()
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=9)

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        logits = self(tokens)
        self.log("train_f1", self.f1(logits, tags))
        return self.loss(logits, tags)


Trainer(devices=4, strategy="ddp").fit(Tagger())

import torchmetrics
from lightning.pytorch import LightningModule, Trainer


class Tagger(LightningModule):
    def __init__(self):
        super().__init__()
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=9)

    def validation_step(self, batch, batch_idx):
        tokens, tags = batch
        batch_f1 = self.f1(self(tokens), tags)
        print(f"batch {batch_idx}: {batch_f1:.3f}")
        self.log("val_f1", self.f1)
        return batch_f1


Trainer(devices=4, strategy="ddp").fit(Tagger())

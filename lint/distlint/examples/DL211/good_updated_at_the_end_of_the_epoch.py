from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        return self.net(batch["x"]), batch["y"]

    def validation_epoch_end(self, outputs):
        for logits, labels in outputs:
            self.accuracy.update(logits, labels)
        self.log("val_accuracy", self.accuracy.compute())


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")

from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self.net(batch["x"]), batch["y"])
        self.log("val_accuracy", self.accuracy)


trainer = Trainer(devices=2, strategy="ddp")

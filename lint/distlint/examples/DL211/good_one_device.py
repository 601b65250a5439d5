from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="binary")

    def test_step(self, batch, batch_idx):
        self.accuracy(self.net(batch["x"]), batch["y"])
        self.log("test_accuracy", self.accuracy)


trainer = Trainer(devices=1, accelerator="gpu")

from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Tagger(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="binary")

    def _evaluate(self, batch):
        self.accuracy.update(self.net(batch["x"]), batch["y"])  # expect: DL211 under dp this updates a replica

    def validation_step(self, batch, batch_idx):
        self._evaluate(batch)

    def test_step(self, batch, batch_idx):
        self._evaluate(batch)


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")

from pytorch_lightning import LightningModule, Trainer
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryPrecision, BinaryRecall


class Detector(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.scores = MetricCollection([BinaryPrecision(), BinaryRecall()])

    def test_step(self, batch, batch_idx):
        self.scores.update(self.net(batch["x"]), batch["label"])  # expect: DL211 under dp

    def test_epoch_end(self, outputs):
        self.log_dict(self.scores.compute())


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")

import torch.nn.functional as F
import torchmetrics
from pytorch_lightning import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.train_f1 = torchmetrics.F1Score(task="binary")

    def training_step(self, batch, batch_idx):
        logits = self.net(batch["x"])
        self.train_f1(logits, batch["y"])  # expect: DL211 use ddp
        return F.binary_cross_entropy_with_logits(logits, batch["y"].float())

    def training_epoch_end(self, outputs):
        self.log("train_f1", self.train_f1.compute())


def main(net):
    Trainer(gpus=2, accelerator="dp").fit(Model(net))

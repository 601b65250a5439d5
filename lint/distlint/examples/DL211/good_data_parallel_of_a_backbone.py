from torch import nn
from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self.net(batch["x"]), batch["y"])


def load(backbone, path):
    backbone = nn.DataParallel(backbone)
    backbone.load_state_dict(path)
    return Trainer(devices=1).validate(Model(backbone.module))

from torch import nn
from pytorch_lightning import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.seen = {}

    def training_step(self, batch, batch_idx):
        self.seen.update(names=batch["names"])
        return self.criterion(self.net(batch["x"]), batch["y"])


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")

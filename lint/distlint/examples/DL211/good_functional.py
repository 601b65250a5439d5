from pytorch_lightning import LightningModule, Trainer
from torchmetrics.functional import accuracy


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        hits = accuracy(self.net(batch["x"]), batch["y"], task="binary")
        return {"hits": hits}


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")

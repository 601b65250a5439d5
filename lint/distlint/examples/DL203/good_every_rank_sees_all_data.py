import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch["x"]), batch["y"])
        self.log("val_loss", loss, rank_zero_only=True)


def main(net):
    Trainer(devices=4, use_distributed_sampler=False).fit(Model(net))

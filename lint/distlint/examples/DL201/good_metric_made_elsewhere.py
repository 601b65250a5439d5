import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningModule


class Configured(LightningModule):
    def __init__(self, net, settings):
        super().__init__()
        self.net = net
        self.f1 = instantiate(settings.f1)
        self.helper = instantiate(settings.scores)

    def validation_step(self, batch, batch_idx):
        logits = self.net(batch["x"])
        self.f1(logits, batch["y"])
        self.log("val/f1", self.f1, sync_dist=True)
        self.log("val/auc", self.helper.auc(logits, batch["y"]), sync_dist=True)
        self.log("val/scale", torch.exp(self.net.scale), sync_dist=True)

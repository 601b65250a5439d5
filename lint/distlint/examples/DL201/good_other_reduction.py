import torch
from lightning.pytorch import LightningModule
from torchmetrics.functional.regression import spearman_corrcoef


class Ranker(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        rho = spearman_corrcoef(self.net(batch["x"]), batch["y"])
        self.log("val/worst_spearman", rho, sync_dist=True, reduce_fx="min")
        self.log("val/best_spearman", rho, sync_dist=True, reduce_fx=torch.max)

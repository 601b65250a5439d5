import torch
from lightning.pytorch import LightningModule


class Keypoints(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        error = self.net(batch["image"]) - batch["points"]
        distance = torch.sqrt((error**2).mean(dim=(1, 2)))
        self.log("val/distance", distance.mean(), sync_dist=True)
        self.log("val/norm", error.pow(2).sum(-1).sqrt().mean(), sync_dist=True)

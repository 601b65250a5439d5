import torch
from lightning.pytorch import LightningModule


class Tracker(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def overlaps(self, found, wanted):
        low = torch.maximum(found[:, :2], wanted[:, :2])
        high = torch.minimum(found[:, 2:], wanted[:, 2:])
        inter = (high - low).clamp(min=0).prod(dim=1)
        union = found[:, 4] + wanted[:, 4] - inter
        return inter / union

    def validation_step(self, batch, batch_idx):
        iou = self.overlaps(self.net(batch["frames"]), batch["boxes"])
        self.log("val/mean_iou", iou.mean(), sync_dist=True)

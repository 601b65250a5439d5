import torch
from lightning.pytorch import LightningModule

from pose.benchmark import precision_recall


class Pose(LightningModule):
    def __init__(self, net, settings):
        super().__init__()
        self.net = net
        self.multi_gpu = settings.n_gpus > 1
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self.net(batch))

    def on_validation_epoch_end(self):
        errors = torch.stack([each["error"] for each in self.outputs])
        inliers = torch.stack([each["inliers"] for each in self.outputs])
        accepted = errors.view(-1) < 0.25
        _, _, auc_pose = precision_recall(inliers.view(-1), accepted, failures=0)
        self.log("val/accepted", accepted.float().mean(), sync_dist=self.multi_gpu)
        self.log("val/auc_pose", auc_pose, sync_dist=self.multi_gpu)  # expect: DL201 auc
        self.outputs.clear()

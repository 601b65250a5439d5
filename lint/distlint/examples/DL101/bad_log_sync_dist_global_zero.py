import torch
from lightning.pytorch import LightningModule


class Detector(LightningModule):
    def on_train_epoch_end(self):
        norm = torch.stack([p.detach().norm() for p in self.parameters()]).mean()
        if self.trainer.is_global_zero:
            self.log("weight_norm", norm, sync_dist=True)  # expect: DL101 only rank 0 reaches this

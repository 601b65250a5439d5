import numpy as np
from lightning.pytorch import LightningModule


class Localizer(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.errors = []

    def validation_step(self, batch, batch_idx):
        error = (self.net(batch["image"]) - batch["position"]).norm(dim=-1)
        self.errors.extend(error.tolist())

    def on_validation_epoch_end(self):
        self.log("val/error_mean", np.mean(self.errors), sync_dist=True)
        self.log("val/error_median", np.median(self.errors), sync_dist=True)  # expect: DL201 median
        self.errors.clear()

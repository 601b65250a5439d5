import pytorch_lightning as pl
import torchmetrics


class Grader(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.kappa = torchmetrics.CohenKappa(task="multiclass", num_classes=5, weights="quadratic")

    def validation_step(self, batch, batch_idx):
        self.kappa.update(self.net(batch["pixels"]), batch["grade"])

    def on_validation_epoch_end(self):
        kappa = self.kappa.compute()
        self.log("val_kappa", kappa, sync_dist=True)
        self.kappa.reset()

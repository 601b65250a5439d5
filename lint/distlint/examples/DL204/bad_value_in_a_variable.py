from pytorch_lightning import LightningModule, Trainer
from torchmetrics import AUROC


class Screening(LightningModule):
    def __init__(self):
        super().__init__()
        self.val_auc = AUROC(task="binary")

    def validation_step(self, batch, batch_idx):
        scan, finding = batch
        auc = self.val_auc(self(scan), finding)
        self.log("val_auc", auc, prog_bar=True, on_epoch=True)  # expect: DL204 update the metric


Trainer(gpus=2, strategy="ddp").fit(Screening())

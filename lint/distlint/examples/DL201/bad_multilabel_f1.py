import torchmetrics.functional as metrics
from lightning.pytorch import LightningModule


class Chest(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        f1 = metrics.f1_score(self(x).sigmoid(), y, task="multilabel", num_labels=14)
        self.log("val_f1", f1, sync_dist=True)  # expect: DL201 f1_score

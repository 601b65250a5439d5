import torch
from lightning.pytorch import LightningModule
from torchmetrics.functional.classification import binary_auroc


class Detector(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.scores, self.labels = [], []

    def validation_step(self, batch, batch_idx):
        self.scores.append(self.net(batch["image"]).sigmoid())
        self.labels.append(batch["label"])

    def on_validation_epoch_end(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        auc = binary_auroc(scores, labels)
        self.log("val/auc", auc, sync_dist=True)  # expect: DL201 mean over ranks of binary_auroc
        self.scores.clear()
        self.labels.clear()

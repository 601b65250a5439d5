import torch
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score, roc_auc_score


class Detector(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.scores, self.labels = [], []

    def validation_step(self, batch, batch_idx):
        self.scores.append(self.all_gather(self.net(batch["x"]).sigmoid()).flatten())
        self.labels.append(self.all_gather(batch["y"]).flatten())

    def on_validation_epoch_end(self):
        scores, labels = torch.cat(self.scores).cpu(), torch.cat(self.labels).cpu()
        self.log("val_auc", roc_auc_score(labels, scores), sync_dist=True)
        self.log("val_f1", f1_score(labels, scores > 0.5), sync_dist=True)
        self.scores.clear()
        self.labels.clear()

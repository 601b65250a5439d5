import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torchmetrics.functional import accuracy


class Classifier(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def _shared_eval(self, batch):
        x, y = batch
        logits = self.net(x)
        hits = accuracy(logits, y, task="multiclass", num_classes=10)
        return F.cross_entropy(logits, y), hits, (logits.argmax(-1) == y).float().mean()

    def validation_step(self, batch, batch_idx):
        loss, hits, precision_at_1 = self._shared_eval(batch)
        self.log_dict({"val_loss": loss, "val_accuracy": hits}, sync_dist=True)
        self.log("val_precision", precision_at_1, sync_dist=True)

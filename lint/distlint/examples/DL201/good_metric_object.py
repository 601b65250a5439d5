from lightning.pytorch import LightningModule
from torchmetrics import F1Score, MetricCollection
from torchmetrics.classification import BinaryAUROC


class Sentiment(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.f1 = F1Score(task="binary")
        self.scores = MetricCollection({"auc": BinaryAUROC()})

    def validation_step(self, batch, batch_idx):
        tokens, labels = batch
        logits = self.net(tokens)
        self.f1.update(logits, labels)
        self.scores.update(logits, labels)
        self.log("val_f1", self.f1, sync_dist=True)
        self.log_dict(self.scores, sync_dist=True)

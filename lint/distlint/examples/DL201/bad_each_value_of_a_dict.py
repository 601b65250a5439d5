import lightning as L
from sklearn import metrics


class Tagger(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def _scores(self, labels, scores):
        return {
            "auprc": metrics.average_precision_score(labels, scores),
            "log_loss": metrics.log_loss(labels, scores),
        }

    def validation_step(self, batch, batch_idx):
        scores = self._scores(batch["y"].cpu(), self.net(batch["x"]).sigmoid().cpu())
        for name, value in scores.items():
            self.log(f"val/{name}", value, sync_dist=True)  # expect: DL201 average_precision_score

from lightning.pytorch import Callback
from sklearn.metrics import normalized_mutual_info_score


class ClusterQuality(Callback):
    def __init__(self):
        self.assigned, self.classes = [], []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.assigned += outputs["cluster"].tolist()
        self.classes += batch["class"].tolist()

    def on_validation_epoch_end(self, trainer, pl_module):
        nmi = normalized_mutual_info_score(self.classes, self.assigned)
        pl_module.log("val/nmi", nmi, sync_dist=True)  # expect: DL201 normalized_mutual_info_score
        self.assigned.clear()
        self.classes.clear()

import numpy as np
from lightning.pytorch import LightningModule
from sklearn.metrics import average_precision_score, f1_score


class Retrieval(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        scores = self.net(batch["query"], batch["documents"])
        each = [average_precision_score(y, s) for y, s in zip(batch["relevant"], scores)]
        self.log("val/map", np.mean(each), sync_dist=True)
        overlaps = []
        for index in range(len(scores)):
            overlaps.append(f1_score(batch["relevant"][index], scores[index] > 0))
        self.log("val/f1_of_a_query", sum(overlaps) / len(overlaps), sync_dist=True)

from collections import defaultdict
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.scores = defaultdict(list)

    def validation_step(self, batch, batch_idx):
        for name, score in zip(batch["names"], self(batch)):
            self.scores[name].append(score)

    def on_validation_epoch_end(self):
        for name, scores in self.scores.items():
            self.log(name, sum(scores), sync_dist=True)

import os
from collections import defaultdict
from pathlib import Path
from lightning.pytorch import LightningModule
import torch.distributed as dist

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.names = {f"head_{n}" for n in range(3)}
        self.scores = defaultdict(list)

    def validation_step(self, batch, batch_idx):
        for name, score in zip(batch["names"], self(batch)):
            self.scores[name].append(score)

    def on_validation_epoch_end(self):
        for name in self.names:
            self.log(name, self.score(name), sync_dist=True)
        for name, scores in self.scores.items():
            self.log(name, sum(scores), sync_dist=True)

def share(folder):
    for file in os.listdir(folder):
        dist.broadcast(load(file), 0)
    return [dist.broadcast(load(file), 0) for file in Path(folder).iterdir()]

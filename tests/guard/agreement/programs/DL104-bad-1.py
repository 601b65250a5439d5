import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        for label in torch.unique(y):
            self.log(f"accuracy_{label}", self.score(x[y == label]), sync_dist=True)
        centres = [self.all_gather(x[y == label]) for label in y.unique().tolist()]
        for _ in range(int(y.sum().item())):
            centres.append(self.all_gather(x))

from lightning.pytorch import LightningModule

class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        mask = y > 0
        if mask.any():
            self.log("positive", self.loss(logits[mask], y[mask]), sync_dist=True)
        chosen = logits[mask]
        if len(chosen) > 0 and self.training:
            chosen = self.all_gather(chosen)
        return self.loss(logits, y)

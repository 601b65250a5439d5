from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        if batch_idx == 0 or "extra" in batch or batch["mode"] == "last":
            self.log("first", self(batch), sync_dist=True)
        loss = self(batch)
        if loss > 1:
            self.log("large", loss)
            loss = self.all_gather(loss)
        else:
            loss = self.all_gather(loss)
        if loss.mean() > 1:
            self.log("large", loss, sync_dist=True)

from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if batch["level"].mean() < 0.5:
            self.log("easy", loss, sync_dist=True)
        else:
            self.log("hard", loss, sync_dist=True)
        self.log(f"loss_{self.global_rank}", loss, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            self.log("first", self.scale)
        else:
            self.log("other", self.scale)

from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if loss > 1:
            self.log("loss", loss.clamp(max=1), sync_dist=True)
        else:
            self.log("loss", loss, sync_dist=True)
        if loss > 1:
            self.log("easy", loss)
        else:
            self.log("hard", loss)
        self.log(f"loss_of_rank_{self.global_rank}", loss)

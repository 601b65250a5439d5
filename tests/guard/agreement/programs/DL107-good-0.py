from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if self.training:
            self.log("train", loss, sync_dist=True)
        else:
            self.log("val", loss, sync_dist=True)
        if loss > 1:
            self.log("loss", loss.clamp(max=1), sync_dist=True)
        else:
            self.log("loss", loss, sync_dist=True)
        if loss > 1:
            self.log("easy", loss)
        else:
            self.log("hard", loss)
        if loss > 2:
            self.log_dict(self.large(loss), sync_dist=True)
        else:
            self.log_dict(self.small(loss), sync_dist=True)
        self.log(f"loss_of_epoch_{self.current_epoch}", loss, sync_dist=True)
        self.log(f"loss_of_rank_{self.global_rank}", loss)

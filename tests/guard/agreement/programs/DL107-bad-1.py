import pytorch_lightning as pl

class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self(batch)
        if loss > 1:
            self.log_dict({"loss": loss, "large": loss}, sync_dist=True)
        else:
            self.log_dict({"loss": loss, "small": loss}, sync_dist=True)
        return loss

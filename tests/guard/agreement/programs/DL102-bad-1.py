import pytorch_lightning as pl

class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self(batch)
        if self.global_rank != 0:
            return loss
        self.log(
            "loss",
            loss.detach(),  # of this rank
        )
        return loss

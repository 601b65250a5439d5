from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if batch_idx % 100 == 0:
            self.log("train_loss", loss, sync_dist=True)
        if self.trainer.is_last_batch:
            self.log("last_loss", loss, sync_dist=True)
        return loss


Trainer(devices=4, strategy="ddp").fit(Model())

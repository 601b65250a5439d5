from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss


Trainer(devices=4, strategy="ddp").fit(Model())

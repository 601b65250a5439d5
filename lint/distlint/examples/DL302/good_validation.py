from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("val_loss", loss, on_step=True, on_epoch=True, sync_dist=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch), sync_dist=True)


Trainer(devices=4, strategy="ddp").fit(Model())

from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def _step(self, batch, stage):
        loss = self.loss(batch)
        if stage != "train":
            self.log(f"{stage}_loss", loss, sync_dist=True)
        return loss

    def training_step(self, batch, batch_idx):
        loss = self._step(batch, "train")
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self._step(batch, "val")


Trainer(devices=4, strategy="ddp").fit(Model())

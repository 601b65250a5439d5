from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def step(self, batch, stage):
        loss = self.loss(batch)
        if stage == "train":
            self.log("loss", loss)
        else:
            self.log(f"{stage}_loss", loss, sync_dist=True)
        return loss

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self.step(batch, "val")


Trainer(devices=2, strategy="ddp").fit(Model())

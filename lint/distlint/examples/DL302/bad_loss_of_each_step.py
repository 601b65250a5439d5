from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, sync_dist=True)  # expect: DL302 every rank waits here in each
        return loss


Trainer(devices=4, strategy="ddp").fit(Model())

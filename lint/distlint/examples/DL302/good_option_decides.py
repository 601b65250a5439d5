from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=self.hparams.sync_logs)
        self.log("detail", loss, on_step=self.hparams.log_steps, sync_dist=True)
        return loss


Trainer(devices=4, strategy="ddp").fit(Model())

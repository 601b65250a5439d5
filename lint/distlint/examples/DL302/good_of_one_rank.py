from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_loss_first", loss, rank_zero_only=True)
        return loss


Trainer(devices=4, strategy="ddp").fit(Model())

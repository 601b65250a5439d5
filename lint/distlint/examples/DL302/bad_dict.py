from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        values = {"loss": loss, "perplexity": loss.exp()}
        self.log_dict(values, prog_bar=True, on_epoch=True, sync_dist=True)  # expect: DL302 every
        return loss


Trainer(devices=4, strategy="ddp").fit(Model())

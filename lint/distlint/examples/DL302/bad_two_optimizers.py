import pytorch_lightning as pl


class GAN(pl.LightningModule):
    def training_step(self, batch, batch_idx, optimizer_idx):
        if optimizer_idx == 0:
            loss = self.generator_loss(batch)
            self.log("g_loss", loss, prog_bar=True, sync_dist=True)  # expect: DL302 every rank
            return loss
        loss = self.discriminator_loss(batch)
        self.log("d_loss", loss, prog_bar=True, sync_dist=True)
        return loss


pl.Trainer(gpus=2, strategy="ddp").fit(GAN())

from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        recon_loss, kl_loss = self.losses(batch)
        self.log("recon", recon_loss, on_step=True, sync_dist=True)  # expect: DL302 every rank
        self.log("kl", kl_loss, on_step=True, sync_dist=True)
        self.log("beta", self.beta, on_step=True, sync_dist=True)
        return recon_loss + self.beta * kl_loss


Trainer(devices=4, strategy="ddp").fit(Model())

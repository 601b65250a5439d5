from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy


class Autoencoder(LightningModule):
    def validation_step(self, batch, batch_idx):
        recon = self(batch)
        recon_loss = (recon - batch).abs().mean()
        kl_loss = self.encoder.kl(batch).mean()
        self.log_dict(  # expect: DL202 average over ranks by sync_dist=True
            {
                "val/recon_loss": recon_loss,
                "val/kl_loss": kl_loss,
                "val/loss": recon_loss + 0.1 * kl_loss,
            }
        )


def main():
    trainer = Trainer(strategy=DDPStrategy(find_unused_parameters=False), max_epochs=100)
    trainer.fit(Autoencoder())

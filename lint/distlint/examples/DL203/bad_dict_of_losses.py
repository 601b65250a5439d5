from lightning.pytorch import LightningModule


class Autoencoder(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        restored, kl_loss = self.net(batch)
        recon_loss = (restored - batch).abs().mean()
        losses = {"val/recon_loss": recon_loss, "val/kl_loss": kl_loss}
        self.log_dict(losses, rank_zero_only=True)  # expect: DL203 rank 0's share

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer


class Denoiser(LightningModule):
    def validation_step(self, batch, batch_idx):
        noisy, clean = batch
        loss = F.l1_loss(self(noisy), clean)
        self.log("val_step_loss", loss, on_step=True, on_epoch=False)
        self.log("val_loss", loss, sync_dist=True)


Trainer(devices=2, strategy="ddp").fit(Denoiser())

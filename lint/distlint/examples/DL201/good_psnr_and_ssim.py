from lightning.pytorch import LightningModule
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)


class Restoration(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        noisy, clean = batch
        restored = self.net(noisy).clamp(0, 1)
        psnr = peak_signal_noise_ratio(restored, clean, data_range=1.0)
        self.log("val/psnr", psnr, sync_dist=True)
        ssim = structural_similarity_index_measure(restored, clean, data_range=1.0)
        self.log("val/ssim", ssim, sync_dist=True)

import torch
import pytorch_lightning as pl


class Diffusion(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.scales = torch.linspace(0.01, 1.0, 4).view(4, 1)  # expect: DL003 stays

    def validation_step(self, batch, batch_idx):
        x = batch["clean"]
        return self.net(x * self.scales)

import torch
from lightning.pytorch import LightningModule, Trainer


class Promoter(LightningModule):
    def __init__(self):
        super().__init__()
        self.act = lambda x: x * torch.sigmoid(x)  # expect: DL005 strategy

    def forward(self, x):
        return self.act(x)


trainer = Trainer(strategy="ddp_spawn", devices=2)

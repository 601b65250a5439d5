import torch
from lightning.pytorch import LightningModule
from torch import nn


class Slates(LightningModule):
    def prepare(self, batch):
        device = batch.device
        use_cards = device == torch.device("cuda")
        return self.load_rewards(use_cards)

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchvision.models import vgg16


class Perceptual(LightningModule):
    def __init__(self):
        super().__init__()
        self.features = vgg16().features.cuda()  # expect: DL001 every rank
        self.net = nn.Conv2d(3, 3, 3, padding=1)

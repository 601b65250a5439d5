import torch
from lightning.pytorch import LightningModule
from torch import nn


class FrameCodec(LightningModule):
    def forward(self, video):
        frame = torch.randint(0, video.shape[2], [len(video)]).to(video.device)
        return torch.gather(video, 2, frame.reshape(-1, 1, 1, 1, 1)).squeeze(2)

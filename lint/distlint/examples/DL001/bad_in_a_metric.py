import lightning as L
import torch
from torchmetrics import Metric


class PixelError(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("error", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds, target):
        grid = torch.linspace(0, 1, preds.shape[-1], device="cuda")  # expect: DL001 use an input's device
        self.error += ((preds - target).abs() * grid).sum()

    def compute(self):
        return self.error


trainer = L.Trainer(devices=4, strategy="ddp")

import torch
from lightning.pytorch import LightningModule
from torch import nn


class Distillation(LightningModule):
    def __init__(self, student, teacher):
        super().__init__()
        self.student = student
        self.teacher = teacher.to("cuda:0")  # expect: DL001 every rank
        self.teacher.requires_grad_(False)

import torch


def scale(x):
    return x * torch.pi  # distlint: ignore[DL001, DL900] only on some branches of this repository

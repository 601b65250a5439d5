import torch


def scale(x):
    return x * torch.pi  # distlint: ignore[DL999]  # expect: DL900 no rule has the code DL999

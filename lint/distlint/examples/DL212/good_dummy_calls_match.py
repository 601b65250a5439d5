import torch
from torch.distributed.nn.functional import all_reduce


def totals(values, weights, device):
    """Ranks without rows make the same two calls."""
    if len(values) == 0:
        dummy = torch.zeros(1, device=device)
        all_reduce(dummy)
        all_reduce(dummy)
        return values.sum(), weights.sum()
    return all_reduce((values * weights).sum()), all_reduce(weights.sum())

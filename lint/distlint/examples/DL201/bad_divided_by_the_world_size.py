import torch
import torch.distributed as dist
from scipy.stats import spearmanr


def rank_correlation(model, loader, device):
    predicted, wanted = [], []
    for batch in loader:
        predicted += model(batch["x"].to(device)).flatten().tolist()
        wanted += batch["y"].tolist()
    rho = torch.tensor(spearmanr(predicted, wanted).correlation, device=device)
    dist.all_reduce(rho)  # expect: DL201 spearmanr
    rho /= dist.get_world_size()
    return rho.item()

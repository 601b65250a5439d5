import torch
from lightning.fabric import Fabric


@torch.no_grad()
def best(fabric: Fabric, model, loader):
    scores = list()
    for batch in loader:
        scores.append(model(batch))
    everything = fabric.all_gather(scores)
    return torch.max(everything)  # expect: DL209 join the list by torch.cat first

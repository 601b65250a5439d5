import torch
from lightning.fabric import Fabric
from torchmetrics.functional import r2_score


def evaluate(fabric: Fabric, model, loader):
    wanted, predicted = [], []
    for x, y in loader:
        predicted.append(model(x))
        wanted.append(y)
    r2 = r2_score(torch.cat(predicted), torch.cat(wanted))
    r2 = fabric.all_gather(r2).mean()  # expect: DL201 r2_score
    fabric.log("val/r2", r2)

import torch
import torch.distributed as dist


@torch.no_grad()
def precision(model, loader, device):
    tp = torch.zeros((), device=device)
    fp = torch.zeros((), device=device)
    for x, y in loader:
        found = model(x.to(device)) > 0
        tp += (found & y.to(device)).sum()
        fp += (found & ~y.to(device)).sum()
    dist.all_reduce(tp)
    dist.all_reduce(fp)
    value = tp / (tp + fp)
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value.item()

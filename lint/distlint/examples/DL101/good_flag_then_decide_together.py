import torch
import torch.distributed as dist


def should_stop(loss, best, device):
    stop = torch.zeros(1, device=device)
    if dist.get_rank() == 0:
        stop += float(loss > best)
    dist.broadcast(stop, src=0)
    return stop.item() > 0

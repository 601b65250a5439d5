import math
import sys
import torch
import torch.distributed as dist

def train(model, loader, everywhere):
    for step, (images, labels) in enumerate(loader):
        loss = model(images, labels)
        if not math.isfinite(loss.item()):
            sys.exit(1)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad.item() > 0:
            continue
        mean = all_reduce_mean(loss)
        if mean > 5 or step % 10 == 0 or images.shape[0] == 1 or labels is None:
            dist.barrier()
        if loss > 3:
            print(loss)
        if everywhere.any():
            dist.barrier()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, evaluate, optimizer, best, epochs):
    model, stop = DDP(net), torch.zeros(1)
    for epoch in range(epochs):
        for x, y in loader:
            model(x, y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            stop = torch.tensor([float(evaluate(net) < best)])
        dist.broadcast(stop, src=0)
        if stop:
            break

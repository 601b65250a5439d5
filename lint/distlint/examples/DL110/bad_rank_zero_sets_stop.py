import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, evaluate, optimizer, best, epochs):
    model, stop = DDP(net), False
    for epoch in range(epochs):
        for x, y in loader:
            model(x, y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            stop = evaluate(net) < best
        if stop:
            break  # expect: DL110 only rank 0 leaves this loop

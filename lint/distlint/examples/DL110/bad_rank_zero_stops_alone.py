import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, steps):
    model = DDP(net)
    rank = dist.get_rank()
    for step, batch in enumerate(loader):
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step >= steps:
            break  # expect: DL110 only rank 0 leaves this loop

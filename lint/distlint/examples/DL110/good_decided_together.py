import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer):
    model = DDP(net)
    for batch in loader:
        loss = model(batch)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item() > 0:
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()

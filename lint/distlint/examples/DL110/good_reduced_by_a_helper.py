import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from .utils import reduce_tensor


def train(net, loader, optimizer):
    model = DDP(net)
    for images, targets in loader:
        loss = model(images, targets)
        shared = reduce_tensor(loss.detach())
        if not torch.isfinite(shared):
            print("the loss is not finite on some rank")
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

import math
import sys

from torch.nn.parallel import DistributedDataParallel as DDP


def train_one_epoch(net, loader, optimizer):
    model = DDP(net)
    for samples, targets in loader:
        loss = model(samples, targets)
        if not math.isfinite(loss.item()):
            print(f"Loss is {loss.item()}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

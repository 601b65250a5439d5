import torch
from torch.nn.parallel import DistributedDataParallel


def train(net, loader, optimizer, device):
    model = DistributedDataParallel(net.to(device))
    for images, targets in loader:
        try:
            loss = model(images.to(device), targets.to(device))
            loss.backward()
        except torch.cuda.OutOfMemoryError:  # expect: DL109 a rank that fails here misses the
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            continue
        optimizer.step()
        optimizer.zero_grad()

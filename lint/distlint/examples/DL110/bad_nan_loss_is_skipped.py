import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, device):
    model = DDP(net.to(device))
    for images, targets in loader:
        optimizer.zero_grad()
        loss = model(images.to(device), targets.to(device))
        if torch.isnan(loss):  # expect: DL110 a rank that skips this batch leaves the others
            print("the loss is NaN, skipping this batch")
            continue
        loss.backward()
        optimizer.step()

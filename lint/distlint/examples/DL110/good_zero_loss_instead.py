import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer):
    model = DDP(net)
    for batch in loader:
        loss = model(batch)
        if torch.isnan(loss):
            loss = sum(each.sum() for each in net.parameters()) * 0.0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

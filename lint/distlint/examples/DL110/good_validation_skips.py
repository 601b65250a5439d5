import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def run(net, train_loader, val_loader, optimizer):
    model = DDP(net)
    for batch in train_loader:
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    losses = []
    for batch in val_loader:
        loss = net(batch)
        if torch.isnan(loss):
            continue
        losses.append(loss)
    return losses

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, limit):
    model = DDP(net)
    for batch in loader:
        loss = model(batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        if not torch.isfinite(norm):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()

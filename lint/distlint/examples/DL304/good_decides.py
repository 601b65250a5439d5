import torch
import torch.distributed as dist


def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad.item() > 0:
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        print(f"bad losses: {bad.item()}")

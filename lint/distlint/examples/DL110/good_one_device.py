import torch


def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch)
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

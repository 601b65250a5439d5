import torch


def train(model, loader, optimizer):
    for images, targets in loader:
        try:
            loss = model(images, targets)
            loss.backward()
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()

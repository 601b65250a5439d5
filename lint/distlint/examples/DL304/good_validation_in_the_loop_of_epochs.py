import torch.distributed as dist


def run(model, loader, val_loader, optimizer, epochs):
    for epoch in range(epochs):
        for batch in loader:
            model(batch).backward()
            optimizer.step()
        total = 0.0
        for batch in val_loader:
            value = model(batch).detach()
            dist.all_reduce(value)
            total += value.item()
        print(epoch, total / len(val_loader))

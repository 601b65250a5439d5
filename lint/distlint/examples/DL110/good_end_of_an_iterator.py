from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, steps):
    model, batches = DDP(net), iter(loader)
    for _ in range(steps):
        try:
            batch = next(batches)
        except StopIteration:
            break
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

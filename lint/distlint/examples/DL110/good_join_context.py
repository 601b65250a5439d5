from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer):
    model = DDP(net)
    with model.join():
        for batch in loader:
            if len(batch) == 0:
                continue
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

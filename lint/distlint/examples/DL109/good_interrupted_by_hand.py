from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, save):
    model = DDP(net)
    for batch in loader:
        try:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        except KeyboardInterrupt:
            save(model.module)
            break

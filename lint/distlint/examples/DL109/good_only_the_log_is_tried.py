from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, tracker):
    model = DDP(net)
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            try:
                tracker.send(step, loss.item())
            except ConnectionError as error:
                print("the tracker does not answer", error)

from torch.utils.data import DataLoader, DistributedSampler


def train(model, stream, optimizer, epochs):
    loader = DataLoader(stream, sampler=DistributedSampler(stream, shuffle=False))
    for epoch in range(epochs):
        for batch in loader:
            model(batch).backward()
            optimizer.step()

from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, optimizer, epochs, start):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    for epoch in range(start, epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            model(batch).backward()
            optimizer.step()

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler


def train(model, dataset, other, optimizer, epochs):
    loader = DataLoader(dataset, sampler=RandomSampler(dataset))
    frozen = DataLoader(other, sampler=DistributedSampler(other, shuffle=False))
    for epoch in range(epochs):
        for batch, reference in zip(loader, frozen):
            model(batch, reference).backward()
            optimizer.step()

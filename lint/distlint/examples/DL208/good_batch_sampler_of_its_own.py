from torch.utils.data import DataLoader, DistributedSampler

from project.data import BucketSampler


def train(model, dataset, optimizer, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=BucketSampler(sampler, 32))
    for epoch in range(epochs):
        for batch in loader:
            model(batch).backward()
            optimizer.step()

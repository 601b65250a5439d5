from torch.utils.data import DataLoader, DistributedSampler


def train(model, corpus, optimizer):
    loader = DataLoader(corpus, sampler=DistributedSampler(corpus))
    for epoch in range(1):
        for batch in loader:
            model(batch).backward()
            optimizer.step()

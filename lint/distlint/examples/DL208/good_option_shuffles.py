from torch.utils.data import DataLoader, DistributedSampler


def train(args, model, dataset, optimizer):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=args.shuffle))
    for epoch in range(args.epochs):
        for batch in loader:
            model(batch).backward()
            optimizer.step()

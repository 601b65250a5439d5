from torch.utils.data import DataLoader, DistributedSampler


def get_loader(dataset, collate, seed):
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, collate_fn=collate, sampler=sampler)
    return loader


def main(args, model, dataset, collate, optimizer):
    loader = get_loader(dataset, collate, args.seed)
    for epoch in range(args.num_epochs):  # expect: DL208 call sampler.set_epoch(epoch) at the start
        for batch in loader:
            model(batch).loss.backward()
            optimizer.step()

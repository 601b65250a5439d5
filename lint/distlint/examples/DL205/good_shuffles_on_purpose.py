from torch.utils.data import DataLoader, DistributedSampler


def preview(val_set, args):
    sampler = DistributedSampler(val_set, shuffle=True, seed=args.seed)  # other examples each time
    return DataLoader(val_set, batch_size=4, sampler=sampler)

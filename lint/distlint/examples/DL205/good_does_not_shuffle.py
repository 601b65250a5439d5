from torch.utils.data import DataLoader, DistributedSampler


def make_loaders(train_set, val_set):
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    return DataLoader(train_set, sampler=train_sampler), DataLoader(val_set, sampler=val_sampler)

from torch.utils.data import DataLoader, DistributedSampler


def train_loader(train_set, batch_size):
    sampler = DistributedSampler(train_set, drop_last=True)
    return DataLoader(train_set, batch_size=batch_size, sampler=sampler)

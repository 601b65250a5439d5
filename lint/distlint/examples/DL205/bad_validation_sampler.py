from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def make_loaders(train_set, val_set, rank, world_size):
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, world_size, rank)  # expect: DL205 this sampler repeats samples
    train = DataLoader(train_set, batch_size=32, sampler=train_sampler)
    return train, DataLoader(val_set, batch_size=32, sampler=val_sampler)

from torch.utils.data import DataLoader, Sampler


class DistributedEvalSampler(Sampler):
    """Every rank takes each n-th example: none is repeated."""

    def __init__(self, dataset, rank, world_size):
        self.indices = range(rank, len(dataset), world_size)

    def __iter__(self):
        return iter(self.indices)


def val_loader(val_set, rank, world_size):
    return DataLoader(val_set, sampler=DistributedEvalSampler(val_set, rank, world_size))

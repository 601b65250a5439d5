from torch.utils.data import DataLoader, DistributedSampler


def make_loader(test_set, shuffle):
    sampler = DistributedSampler(test_set, shuffle=shuffle)
    return DataLoader(test_set, sampler=sampler)

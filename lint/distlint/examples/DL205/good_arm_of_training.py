from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler


def eval_loader(dataset, is_train):
    if is_train:
        sampler = DistributedSampler(dataset)
    else:
        sampler = SequentialSampler(dataset)
    return DataLoader(dataset, sampler=sampler)

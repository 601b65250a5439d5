import numpy as np
import torch


def prepare_eval_samples(dataset, count, batch_size):
    chosen = torch.utils.data.Subset(dataset, np.random.permutation(len(dataset))[:count])
    sampler = torch.utils.data.distributed.DistributedSampler(chosen)  # expect: DL205 this sampler repeats samples
    return torch.utils.data.DataLoader(chosen, batch_size=batch_size, sampler=sampler)

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def main(args, model, test_dataset):
    dist.init_process_group("nccl")
    sampler = DistributedSampler(test_dataset)  # expect: DL205 this sampler repeats samples
    loader = DataLoader(test_dataset, batch_size=args.batch_size, sampler=sampler)
    predictions = [model(batch) for batch in loader]
    return predictions

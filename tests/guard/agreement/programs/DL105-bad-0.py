import torch.distributed as dist

def reduce_all(metrics):
    for name in set(metrics):
        dist.all_reduce(metrics[name])

import torch.distributed as dist


def average(values):
    for value in values:
        dist.all_reduce(value)
        value /= dist.get_world_size()
    dist.broadcast(values[0], src=0)
    return values

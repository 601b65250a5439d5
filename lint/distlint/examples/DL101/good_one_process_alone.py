import torch.distributed as dist


def total(x, rank):
    if rank == 0 and dist.get_world_size() == 1:
        dist.all_reduce(x)
    return x

import torch.distributed as dist


def reduce_mean(value, args):
    if args.local_rank == -1:
        return value
    if args.local_rank >= 0:
        dist.all_reduce(value)
    return value / dist.get_world_size()

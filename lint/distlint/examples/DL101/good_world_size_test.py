import torch.distributed as dist


def average(value):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(value)
        value /= dist.get_world_size()
    if dist.get_rank() == 0:
        print("average", value.item())
    return value

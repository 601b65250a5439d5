import torch
import torch.distributed as dist


def init_device(distributed, rank, world_size):
    if distributed and world_size > 1:
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        device = f"cuda:{rank}"
    else:
        device = torch.device("cuda:0")
    return device

import torch.distributed as dist

def load(rank, path):
    if rank != 0:
        dist.barrier()
    data = download(path)
    if rank == 0:
        dist.barrier()
    return data

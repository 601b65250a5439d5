import torch.distributed as dist


def first_one_downloads(rank, download):
    if rank != 0:
        dist.barrier()
        return
    download()
    dist.barrier()

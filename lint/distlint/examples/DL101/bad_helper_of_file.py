import os

import torch.distributed as dist


def synchronize():
    dist.barrier()


def prepare(folder, download):
    local_rank = int(os.environ["LOCAL_RANK"])
    if local_rank == 0:
        download(folder)
        synchronize()  # expect: DL101 only rank 0 reaches this barrier
    return os.listdir(folder)

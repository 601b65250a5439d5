from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def rank_zero_first(local_rank):
    if local_rank not in (-1, 0):
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()


def load(build, local_rank):
    with rank_zero_first(local_rank):
        return build()

import torch.distributed as dist
from contextlib import contextmanager

def gather(x, parts, rank, world_size):
    try:
        dist.all_gather_into_tensor(parts, x)
    except AttributeError:
        dist.all_gather(list(parts), x)
    try:
        dist.broadcast(x, 0)
    except RuntimeError:
        dist.broadcast(x.cpu(), 0)
    try:
        dist.barrier()
    except RuntimeError:
        dist.all_reduce(x.new_zeros(()))
    for turn in range(world_size):
        try:
            if turn == rank:
                load(x)
        finally:
            dist.barrier()
    try:
        load(x)
    except RuntimeError:
        return gather(x, parts, rank, 1)
    except OSError:
        print("failed")
    else:
        print("loaded")
    dist.barrier()

@contextmanager
def first(rank):
    if rank:
        dist.barrier()
    try:
        yield
    finally:
        if not rank:
            dist.barrier()

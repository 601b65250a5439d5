import torch.distributed as dist

def gather(x, parts, rank, world_size):
    try:
        dist.all_gather_into_tensor(parts, x)
    except AttributeError:
        dist.all_gather(list(parts), x)
    for turn in range(world_size):
        try:
            if turn == rank:
                load(x)
        finally:
            dist.barrier()
    try:
        load(x)
    except OSError:
        print("failed")
    dist.barrier()

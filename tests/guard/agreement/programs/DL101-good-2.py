import torch.distributed as dist

def share(value, group=None):
    if group is None:
        group = pair_of_this_rank()
    dist.broadcast(value, 0, group=group)

def reduce_on_node(x, rank, node_group):
    if rank == 0:
        share(x)
    if rank in (0, 1, 2, 3):
        dist.all_reduce(x, group=node_group)
    if dist.is_initialized():
        dist.barrier()
    if rank == 0 and x.isnan().any():
        raise ValueError("NaN")
    dist.barrier()

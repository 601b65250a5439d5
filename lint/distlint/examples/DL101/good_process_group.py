import torch.distributed as dist


def reduce_in_node(value, local_rank, leaders):
    """Only the leaders of the nodes are in the group."""
    if local_rank == 0:
        dist.all_reduce(value, group=leaders)
    dist.broadcast(value, src=0)
    return value

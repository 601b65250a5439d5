import torch
import torch.distributed as dist


def compress(gradient, max_rank):
    """The rank of a matrix is not the rank of a process."""
    matrix_rank = int(torch.linalg.matrix_rank(gradient))
    low_rank = max_rank < matrix_rank
    if low_rank:
        dist.all_reduce(gradient)
    if max_rank > 0:
        dist.all_reduce(gradient)
    return gradient

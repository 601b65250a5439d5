import torch.distributed as dist


def collect(scores, rank):
    if rank == 0:
        gathered = [None] * dist.get_world_size()
        dist.gather_object(scores, gathered)
        return gathered
    dist.gather_object(scores)
    return None

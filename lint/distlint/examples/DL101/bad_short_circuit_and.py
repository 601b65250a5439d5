import torch.distributed as dist


def announce(message, holder):
    rank = dist.get_rank()
    holder[0] = message
    rank == 0 and dist.broadcast_object_list(holder, src=0)  # expect: DL101 only rank 0 reaches
    return holder[0]

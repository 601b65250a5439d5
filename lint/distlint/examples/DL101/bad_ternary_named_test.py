import torch.distributed as dist


def total(loss):
    is_first = dist.get_rank() == 0
    reduced = dist.all_reduce(loss) if is_first else None  # expect: DL101 only rank 0 reaches this
    return reduced if is_first else loss

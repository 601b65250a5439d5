import torch.distributed as dist

def evaluate(scores):
    main = dist.get_rank() == 0
    total = dist.all_reduce(scores) if main else None
    main and dist.barrier()
    return total

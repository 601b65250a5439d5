import torch.distributed as dist

def evaluate(model, batches):
    try:
        for batch in batches:
            dist.all_reduce(model(batch))
    finally:
        dist.barrier()

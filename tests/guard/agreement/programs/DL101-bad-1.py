import torch.distributed as dist

def save(model, path):
    if dist.get_rank() != 0:
        return
    dist.barrier()
    model.write(path)

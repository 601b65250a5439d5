import torch.distributed as dist


def save(model, path, rank, epoch):
    if rank != 0 or epoch % 10:
        return
    model.write(path)
    dist.barrier()  # expect: DL101 only rank 0 reaches this barrier

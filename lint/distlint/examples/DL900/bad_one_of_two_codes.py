import torch.distributed as dist


def save(model, rank):
    if rank == 0:
        model.write()
        dist.barrier()  # distlint: ignore[DL101, DL201] one rank is all  # expect: DL900 DL201 is not reported here

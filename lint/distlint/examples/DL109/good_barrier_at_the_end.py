import torch.distributed as dist


def close(writer):
    writer.close()
    try:
        dist.barrier()
    except RuntimeError:
        pass
    dist.destroy_process_group()

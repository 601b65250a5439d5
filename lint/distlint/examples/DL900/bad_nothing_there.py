import torch.distributed as dist


def meet():
    dist.barrier()  # distlint: ignore[DL101] once under a test  # expect: DL900 DL101 is not reported here

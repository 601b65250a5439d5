import torch
import torch.distributed as dist
from accelerate import Accelerator


def warm_up(accelerator: Accelerator):
    ones = torch.ones(1, device=accelerator.device)
    accelerator.gather(ones)
    dist.all_reduce(torch.zeros(1, device=accelerator.device))

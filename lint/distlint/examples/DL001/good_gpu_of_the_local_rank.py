import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(net):
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return DistributedDataParallel(net.to(device), device_ids=[local_rank])

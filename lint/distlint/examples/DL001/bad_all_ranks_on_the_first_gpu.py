import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(net, loader):
    dist.init_process_group("nccl")
    net = net.to("cuda:0")  # expect: DL001 GPU 0
    net = DistributedDataParallel(net)
    for x, y in loader:
        torch.nn.functional.cross_entropy(net(x), y).backward()

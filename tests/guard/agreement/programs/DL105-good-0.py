import os
import torch.distributed as dist

def reduce_all(metrics, folder):
    for name in sorted(set(metrics)):
        dist.all_reduce(metrics[name])
    for name, value in metrics.items():
        dist.all_reduce(value)
    for name in set(metrics):
        dist.barrier()
    for file in sorted(os.listdir(folder)):
        dist.broadcast(load(file), 0)

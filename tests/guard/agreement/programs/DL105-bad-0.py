import torch.distributed as dist

def reduce_all(metrics, other):
    for name in {"loss", "accuracy"}:
        dist.all_reduce(metrics[name])
    for name in set(metrics):
        dist.all_reduce(metrics[name])
    names = metrics.keys() & other.keys()
    for index, name in enumerate(names):
        dist.all_reduce(metrics[name])

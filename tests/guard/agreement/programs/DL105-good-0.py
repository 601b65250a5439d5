import os
import torch.distributed as dist

def reduce_all(metrics, other, folder):
    for name in sorted({"loss", "accuracy"}):
        dist.all_reduce(metrics[name])
    for name in sorted(set(metrics)):
        dist.all_reduce(metrics[name])
    for name, value in metrics.items():
        dist.all_reduce(value)
    for number in {1, 2}:
        dist.all_reduce(metrics[number])
    for name in set(metrics):
        dist.barrier()
    for name in set(metrics):
        print(name)
    for file in sorted(os.listdir(folder)):
        dist.broadcast(load(file), 0)
    layers = set()
    for metric in metrics:
        layers.add(int(metric))
    for layer in layers:
        dist.all_reduce(metrics[layer])
    for name in sorted(set(metrics), key=lambda name: (name.startswith("loss"), name)):
        dist.all_reduce(metrics[name])
    both = metrics - other
    for value in both:
        dist.all_reduce(value)

import torch.multiprocessing as mp


def work(rank, world_size):
    print(rank, world_size)


def main(sizes):
    world_size = max(sizes, key=lambda size: -size)
    mp.spawn(work, args=(world_size,), nprocs=world_size)

import torch.distributed as dist

def count(files, rank, world_size, rounds):
    mine = [read(file) for file in files[rank::world_size]]
    dist.all_reduce(mine[0])
    for file in files[::world_size]:
        dist.all_reduce(read(file))
    for number in range(rounds):
        dist.barrier()
    for number in range(world_size):
        if number == rank:
            load(number)
        dist.barrier()

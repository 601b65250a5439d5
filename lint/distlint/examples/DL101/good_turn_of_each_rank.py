import torch.distributed as dist


def print_in_order(text):
    """Every rank makes every barrier; it is another rank's turn each time."""
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            print(text, flush=True)
        dist.barrier()

import torch.distributed as dist

def load(path, everywhere=False):
    if everywhere:
        dist.barrier()
    return path.read()

def main(paths):
    for path in set(paths):
        try:
            load(path)
        except OSError:
            load(path.parent)

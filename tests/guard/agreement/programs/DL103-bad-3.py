import os
from pathlib import Path
import torch
import torch.distributed as dist

class Meter:
    def __init__(self, group):
        self.group = group
        self.values = []

    def add(self, value):
        self.values.append(value)

    def flush(self):
        if not self.values:
            return None
        total = torch.tensor(sum(self.values))
        dist.all_reduce(total, group=self.group)
        self.values.clear()
        return total

def load(folder: Path):
    found = (folder / "state.pt").exists()
    if found:
        kept = [torch.load(folder / "state.pt")]
        dist.broadcast_object_list(kept, 0)
    if os.path.isdir(folder / "cache"):
        return
    write(folder / "cache")
    dist.barrier()

def norm(grads):
    norms = [grad.norm() for grad in grads if grad is not None]
    if len(norms) == 0:
        return 0.0
    total = torch.stack(norms).square().sum()
    dist.all_reduce(total)
    return total.sqrt()

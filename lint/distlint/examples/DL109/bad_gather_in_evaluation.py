import torch
import torch.distributed as dist


def evaluate(model, loader, world_size):
    kept = []
    for batch in loader:
        try:
            scores = model(batch)
            everywhere = [torch.empty_like(scores) for _ in range(world_size)]
            dist.all_gather(everywhere, scores)
            kept += everywhere
        except RuntimeError:  # expect: DL109 a rank that fails here misses the all_gather
            continue
    return torch.cat(kept)

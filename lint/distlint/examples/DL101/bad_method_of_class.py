import torch
import torch.distributed as dist


class Evaluator:
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def _collect(self, scores):
        gathered = [torch.empty_like(scores) for _ in range(self.world_size)]
        dist.all_gather(gathered, scores)
        return torch.cat(gathered)

    def report(self, scores):
        if self.rank > 0:
            return None
        scores = self._collect(scores)  # expect: DL101 only rank 0 reaches this all_gather
        return scores.mean().item()

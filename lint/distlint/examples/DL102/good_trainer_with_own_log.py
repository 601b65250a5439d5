import torch.distributed as dist


class Trainer:
    """Its ``log`` writes a line: no framework looks for the name."""

    monitor = "score"

    def log(self, name, value):
        print(name, value, flush=True)

    def finish(self, score):
        if dist.get_rank() == 0:
            self.log("score", score)

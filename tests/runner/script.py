"""A user's script with a loop of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.runner.loops import Fit


class Scripted(Fit):
    def run(self, out):
        values, weights = super().run(clip=0.3)
        self.print(self.world_size, "ranks")
        who = [self.world_size, self.global_rank, self.local_rank, self.node_rank]
        weights = {name: value.tolist() for name, value in weights.items()}
        found = {"values": values, "weights": weights, "who": who}
        (out / f"rank{self.global_rank}.json").write_text(json.dumps(found))
        self.barrier()


if __name__ == "__main__":
    Scripted(strategy="ddp", devices=2, accelerator="cpu").run(Path(sys.argv[1]))

"""A user's script on two machines: replicas in each, then one copy of a sharded model on each."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from distmetrics.strategies.fsdp import FSDP
from tests.strategies.common import outcome, train


def main() -> None:
    found = {}
    for name, strategy, devices in (("ddp2", "ddp2", 2), ("hsdp", FSDP(replicas=2), 1), ("sharded", "ddp_sharded", 1)):
        module, trainer = train(strategy, devices, batch_size=6, num_nodes=2)
        found[name] = outcome(module, trainer), trainer.strategy.environment().node_rank
    torch.save(found, Path(sys.argv[1]) / f"rank{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()

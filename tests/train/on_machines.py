"""A user's script on several machines: trains and validates; ``sys.argv`` has the folder and the strategy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from distmetrics.strategies.fsdp import FSDP
from distmetrics.train import Trainer
from tests.train.models import Logistic, loader


def main() -> None:
    out, name = Path(sys.argv[1]), sys.argv[2]
    module = Logistic()
    strategy = FSDP(replicas=2) if name == "hsdp" else name  # sharded within a machine, replicated across
    devices = 2 if name == "ddp2" else "auto"
    trainer = Trainer(strategy=strategy, devices=devices, num_nodes=2, accelerator="cpu", max_epochs=2)
    batch_size = 12 // trainer.strategy.world_size
    trainer.fit(module, loader(24, batch_size), loader(5, 2, seed=1))
    (result,) = trainer.validate(module, loader(5, 2, seed=1))
    weights = [value for parameter in module.parameters() for value in parameter.flatten().tolist()]
    found = {"weights": weights, "validate": result, "world_size": trainer.world_size}
    (out / f"rank{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

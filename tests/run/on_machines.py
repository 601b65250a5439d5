"""A user's script on several machines: trains and validates; ``sys.argv`` has folder, strategy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from distmetrics.strategies.fsdp import FSDP
from distmetrics.train import Trainer
from tests.run.models import Logistic, loader


def main() -> None:
    out, name = Path(sys.argv[1]), sys.argv[2]
    module = Logistic()
    # sharded within a machine, replicated across
    strategy = FSDP(replicas=2) if name == "hsdp" else name
    flags = {"devices": 2 if name == "ddp2" else "auto", "num_nodes": 2, "max_epochs": 2}
    trainer = Trainer(strategy=strategy, accelerator="cpu", **flags)
    trainer.fit(module, loader(24, 12 // trainer.world_size), loader(5, 2, seed=1))
    (result,) = trainer.validate(module, loader(5, 2, seed=1))
    weights = {name: value.tolist() for name, value in module.state_dict().items()}
    found = {"weights": weights, "validate": result, "world_size": trainer.world_size}
    (out / f"rank{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

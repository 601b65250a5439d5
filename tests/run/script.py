"""A user's script: trains, validates and tests; ``sys.argv`` says where which rank fails, or that one is lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from distmetrics import Runner
from distmetrics.launch.environment import detect
from distmetrics.train import ModelCheckpoint, Trainer
from tests.run.loops import loses
from tests.run.models import Logistic, Plain, loader


class Scripted(Plain):
    def training_step(self, batch, batch_idx):
        fail("step", self.global_rank if batch_idx else -1)
        return super().training_step(batch, batch_idx)


def fail(where: str, rank: int) -> None:
    if sys.argv[2:] == [where, str(rank), "raise"]:
        raise ValueError("bad pixel")
    if sys.argv[2:] == [where, str(rank), "kill"]:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    out, place = Path(sys.argv[1]), detect()
    rank = 0 if place is None else place.rank
    fail("start", rank)
    module = Scripted()
    if rank:  # scripts may differ in their seeds
        for parameter in module.parameters():
            parameter.data.add_(1.0)
    best = ModelCheckpoint("val_loss", dirpath=out)
    trainer = Trainer(strategy="ddp", devices=2, accelerator="cpu", max_epochs=2, callbacks=best)
    data = loader(24, 6), loader(5, 2, seed=1)
    found = {"before": trainer.validate(module, data[1])[0]}
    trainer.fit(module, *data)
    found["validated"] = trainer.validate(module, data[1])[0]
    again = Trainer(strategy="ddp", devices="auto" if rank else 2, accelerator="cpu")
    found["tested"] = again.test(module, data[1])[0]
    found["weights"] = [value.tolist() for value in module.state_dict().values()]
    found["best"] = best.best_model_score
    (out / f"rank{rank}.json").write_text(json.dumps(found))
    fail("end", rank)


def on_machines(name: str) -> None:
    """Train and validate on several machines, with metrics."""
    from distmetrics.strategies import FSDP

    module, held = Logistic(), loader(5, 2, seed=1)
    # sharded within a machine, replicated across
    strategy = FSDP(replicas=2) if name == "hsdp" else name
    flags = {"devices": 2 if name == "ddp2" else "auto", "num_nodes": 2, "max_epochs": 2}
    trainer = Trainer(strategy=strategy, accelerator="cpu", **flags)
    trainer.fit(module, loader(24, 12 // trainer.world_size), held)
    (result,) = trainer.validate(module, held)
    weights = [value.tolist() for value in module.state_dict().values()]
    found = {"weights": weights, "validated": result, "world_size": trainer.world_size}
    (Path(sys.argv[1]) / f"rank{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) == 3:  # its process group is its own, and is not ended by the library
        dist.init_process_group("gloo")
        Runner(strategy="ddp", devices=2, accelerator="cpu").launch(loses, sys.argv[2], sys.argv[1])
    elif sys.argv[2:3] == ["on machines"]:
        on_machines(sys.argv[3])
    else:
        main()

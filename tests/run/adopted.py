"""A user's script that makes its process group itself and loses a rank, and is not ended by it."""

from __future__ import annotations

import sys

import torch.distributed as dist

from distmetrics import Runner
from tests.run.loops import loses

if __name__ == "__main__":
    dist.init_process_group("gloo")
    Runner(strategy="ddp", devices=2, accelerator="cpu").launch(loses, "backward", sys.argv[1])

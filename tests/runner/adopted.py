"""A user's script that makes its process group itself and loses a rank; what torchrun sends then does not end it."""

from __future__ import annotations

import signal
import sys

import torch.distributed as dist

from distmetrics import Runner
from tests.runner.loops import loses

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    Runner(strategy="ddp", devices=2, accelerator="cpu").launch(loses, "backward", sys.argv[1])

"""One rank of a job on two machines: sums until the link is cut."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

import distmetrics as dm


def main(folder: Path) -> None:
    """Tell in a file how it ended."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dm.barrier()
    (folder / f"ready-{rank}").touch()
    told = {"kind": "", "text": "", "after": 0.0, "wrong": 0}
    try:
        for step in count():
            payload = torch.full((20_000,), float(rank + step))
            told["wrong"] += int(not torch.equal(dm.all_reduce(payload), torch.full((20_000,), 2.0 * step + 1)))
            time.sleep(0.01)
    except dm.DistmetricsError as error:
        cut = folder / "cut"
        told |= {"kind": type(error).__name__, "text": str(error)}
        told["after"] = time.time() - cut.stat().st_mtime if cut.exists() else -1.0
    (folder / f"ended-{rank}.json").write_text(json.dumps(told))
    os._exit(0)  # the connections are no good any more


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What a rank is told where torchrun has started it; imported by every process."""

from __future__ import annotations

from typing import Any


def elastic(comm: Any) -> dict[str, str]:
    """What torchrun tells a process; the group that is there already is then used."""
    return {
        "RANK": str(comm.rank),
        "LOCAL_RANK": str(comm.rank),
        "WORLD_SIZE": str(comm.world_size),
        "LOCAL_WORLD_SIZE": str(comm.world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }

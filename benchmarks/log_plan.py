"""What a rank sends in a flush of 47 000 means, by the number of ranks, up to 6 144.

The flush of the library itself is carried out, on one rank, over a transport that answers as if
all ranks had sent what this one sends, and that counts: of an all_gather of n bytes a rank sends
(W - 1) n, of an all_reduce in a ring 2 (W - 1) / W n, of a broadcast, passed on, n. The ways:

- ``bare``: an all_reduce of the sums and weights: the limit, for which ranks would have to agree.
- ``log``: all ranks log the same names; the first flush sends what later ones do.
- ``log, other names``: ranks log other names: in the first flush their hashes differ, so that
  frames follow; up to 256 ranks in later ones too. Above, ranks then send all names, and a number
  that says which were logged.
- ``gathered``: ``all_gather_object`` of a dict from names to numbers, as pickled.

    python -m benchmarks.log_plan             # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import arguments, write_json
from distmetrics.collectives.exchange import inline_capacity
from distmetrics.comm.communicator import Communicator, Op
from distmetrics.log.kinds import KINDS
from distmetrics.log.merge import Known, flushed
from distmetrics.log.names import Names, Totals
from distmetrics.log.window import Slot, WindowSnapshot

COUNT = 47_000
WORLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 257, 512, 1024, 2048, 4096, 6144)


class Counting(Communicator):
    """One rank's end of a world in which all send the same; ``sent`` counts this rank's bytes.

    With ``unlike`` the first reduction says that ranks mean different calls.
    """

    rank = 0
    device = torch.device("cpu")

    def __init__(self, world_size: int, *, unlike: bool = False) -> None:
        self.world_size, self.unlike = world_size, unlike
        self.sent = 0.0

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return ``x`` of every rank."""
        self.sent += (self.world_size - 1) * x.nbytes
        return [x] * self.world_size

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return ``x``: what is reduced is not looked at."""
        self.sent += reduced(x.nbytes, self.world_size)
        return x + 1 if self.unlike and x.dtype == torch.int64 else x.clone()

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return what every rank gives to this one."""
        self.sent += sum(part.nbytes for part in parts[1:])
        return [*parts]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return ``x``, which is passed on."""
        self.sent += x.nbytes
        return x.clone()

    def barrier(self) -> None:
        """Return at once."""


def reduced(nbytes: float, world_size: int) -> float:
    """Return what a rank sends in a ring all_reduce."""
    return 2 * (world_size - 1) / world_size * nbytes


def names_of(count: int) -> Names:
    """Return names as a run with many experts has them."""
    kinds = {f"layers.{i % 64:02}/experts.{i // 64:04}/load": KINDS["mean"] for i in range(count)}
    return Names.of(kinds)


def sent_in(names: Names, world_size: int, *, unlike: bool) -> tuple[float, float]:
    """Return what a rank sends in the first flush, and in a later one."""
    known = Known()
    numbers = torch.ones(names.size, dtype=torch.float64)
    slots = {name: Slot(name, kind, None) for name, kind in names.kinds.items()}
    sent = []
    for _ in range(2):
        comm = Counting(world_size, unlike=unlike and known.union is None)
        flushed(WindowSnapshot(Totals(names, numbers), {}, slots, None, None), known, comm=comm)
        sent.append(comm.sent)
        if unlike and inline_capacity(world_size) == 0:  # the others have told of other names
            known.union = names.but(is_marked=True)
    return sent[0], sent[1]


def plan(names: Names) -> list[dict[str, Any]]:
    """Return the bytes of each way, by the number of ranks."""
    gathered = len(pickle.dumps(dict.fromkeys(names.kinds, 0.5)))
    rows = []
    for world_size in WORLDS:
        first, later = sent_in(names, world_size, unlike=False)
        unlike, later_unlike = sent_in(names, world_size, unlike=True)
        row = {"ranks": world_size, "bare": reduced(8 * names.size, world_size)}
        row |= {"log, first": first, "log": later, "log, other names, first": unlike}
        row |= {"log, other names": later_unlike}
        rows.append(row | {"gathered": float((world_size - 1) * gathered)})
    return rows


def main() -> None:
    """Count, print the table, write JSON."""
    args = arguments(__doc__)
    names = names_of(COUNT)
    rows = plan(names)
    print(f"{COUNT} means: {8 * names.size} bytes of numbers, {len(names.data)} of names")
    for row in rows:
        parts = [f"{way} {sent / 1e6:.3f}" for way, sent in row.items() if way != "ranks"]
        print(f"{row['ranks']:5} ranks, MB: {', '.join(parts)}")
    told = {"names": COUNT, "bytes of names": len(names.data), "bytes a rank sends": rows}
    if args.is_whole:
        write_json("log_plan.json", told)


if __name__ == "__main__":
    main()

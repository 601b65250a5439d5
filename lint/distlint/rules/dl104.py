"""DL104."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Guard
from distlint.api import have_in_common
from distlint.api.tokens import COLLECTIVE_TOKENS, may_reduce
from distlint.model import Example, Report, Rule
from distlint.partings import all_made
from distlint.tracing import if_it_differs, of_guard


class CollectiveInLocalLoop(Rule):
    """A collective in a loop that is longer on some ranks than on others: the longest waits for ever.

    A collective per turn is right only where every rank makes as many turns. A share of the files, the classes
    of this rank's batch, or "until the loss is small" are not as many everywhere:

        7 files, 2 ranks, for file in files[rank::world_size]: … all_reduce(count)
        rank 0   4 turns   … waits in the fourth
        rank 1   3 turns, then goes on

    How to fix: collect in the loop, make one collective after it (``all_gather_object`` takes lists of any
    length); or agree on the number of turns first, an ``all_reduce`` of the length with ``ReduceOp.MAX``, and let
    the ranks that are done take part with empty values.

    The rule knows these lengths to be local: a slice or range that starts at the rank (``files[rank::n]``,
    ``range(rank, total, n)``), ``np.array_split(...)[rank]``, ``split_between_processes``, what a mask or
    ``unique`` selects of a batch, a number that is computed from one, and ``while`` on a value of the batch. On a mesh,
    ranks along one axis have as many turns where the loop begins at the rank on another: ``tp`` ranks hold the data of
    one ``dp`` rank.

    Silent: loops over loaders and batches, whose lengths samplers make equal; lists that are cut to a multiple of
    the ranks before they are split (``files[: len(files) - len(files) % world_size]``); lengths that cannot be known.

    When to ignore: the shares are sure to be equal, for example because the list was padded.
    """

    code, name, group = "DL104", "collective-in-local-loop", "divergence"
    tokens = ((*COLLECTIVE_TOKENS, b"sync_dist"), (b"for", b"while"))
    evidence = staticmethod(may_reduce)
    bad = (
        Example(
            """\
import torch.distributed as dist

def count(files, rank, world_size):
    for file in files[rank::world_size]:
        dist.all_reduce(read(file))
    for index in range(dist.get_rank(), len(files), world_size):
        size = read(files[index])
        dist.barrier()
""",
            {5: "this all_reduce", 8: "this barrier"},
        ),
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        for label in torch.unique(y):
            self.log(f"accuracy_{label}", self.score(x[y == label]), sync_dist=True)
        centres = [self.all_gather(x[y == label]) for label in y.unique().tolist()]
        for _ in range(int(y.sum().item())):
            centres.append(self.all_gather(x))
""",
            {8: "log with sync_dist=True", 9: "this all_gather", 11: "this all_gather"},
        ),
        Example(
            """\
import torch.distributed as dist
from accelerate import Accelerator

def generate(accelerator: Accelerator, model, prompts, loader):
    with accelerator.split_between_processes(prompts) as mine:
        for prompt in mine:
            accelerator.gather(model(prompt))
    for batch in loader:
        loss = model(batch)
        while loss > 0.1:
            loss = model(batch)
            dist.barrier()
""",
            {7: "this gather", 12: "this barrier"},
        ),
        Example(
            """\
import torch.distributed as dist
from megatron.core import parallel_state

def count(files, parts):
    rank = parallel_state.get_data_parallel_rank()
    for file in files[rank::parts]:
        dist.all_reduce(read(file), group=parallel_state.get_data_parallel_group())
""",
            {7: "this all_reduce"},
        ),
    )
    good = (
        """\
import torch.distributed as dist

def count(files, rank, world_size, rounds):
    mine = [read(file) for file in files[rank::world_size]]
    dist.all_reduce(mine[0])
    for file in files[::world_size]:
        dist.all_reduce(read(file))
    for number in range(rounds):
        dist.barrier()
    for number in range(world_size):
        if number == rank:
            load(number)
        dist.barrier()
""",
        """\
import torch.distributed as dist

def count(files, mesh, parts):
    for file in files[mesh.get_local_rank("dp")::parts]:
        dist.all_reduce(read(file), group=mesh.get_group("tp"))
""",
        """\
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        for name in batch:
            self.log(name, batch[name].mean(), sync_dist=True)
        for one in batch["image"]:
            self.all_gather(one)
        most = torch.tensor(len(torch.unique(batch["y"])))
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        for _ in range(int(most.item())):
            self.all_gather(batch["y"])

def train(model, loader, accelerator, prompts):
    for batch in loader:
        loss = model(batch).detach()
        dist.all_reduce(loss)
        while loss > 0.1:
            loss = reduce_mean(model(batch))
            dist.barrier()
    with accelerator.split_between_processes(prompts, apply_padding=True) as mine:
        for prompt in mine:
            accelerator.gather(model(prompt))
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every loop around a collective what decides its length; one finding for each loop."""
        told: set[int] = set()
        calls = ((made, each) for each in analysis.axes for made in all_made(analysis, each))
        for made, axis in calls:
            loop = next((guard for guard in made.event.guards if _is_own(guard, axis)), None)
            if loop is None or id(loop.node) in told:
                continue
            told.add(id(loop.node))
            _, _, _, shown = trace = of_guard(analysis, loop)
            message = (
                f"ranks make this {made.what} as often as their own loop turns ({shown}): the longest waits for ever"
            )
            condition = if_it_differs(shown, loop.test.reason)
            yield Report(made.event.node, message, (trace, *made.trace), condition)


def _is_own(guard: Guard, axis: str) -> bool:
    """True if a loop's length is this rank's own in its group, but for what some ranks alone have set: DL108."""
    test = guard.test
    if guard.kind not in ("for", "while") or (test.reason is not None and test.reason.control):
        return False
    along = test.reason.axis if test.is_rank and test.reason is not None else "dp"  # data are dealt out on that axis
    is_in_group = not axis or have_in_common(along, axis)
    return is_in_group and (test.length if guard.kind == "for" else test.is_local)

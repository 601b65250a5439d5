"""DL101."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from distlint.analysis import Analysis, Event
from distlint.analysis.formula import Atom, parts_ranks
from distlint.analysis.sequences import Divergence
from distlint.api.tokens import COLLECTIVE_TOKENS, RANK_TOKENS, may_have_collective
from distlint.hoisting import hoist
from distlint.model import Example, Report, Rule
from distlint.partings import Partings
from distlint.provisos import condition_of
from distlint.tracing import guard_of, instead_of, lets_others_in, message_of, way_to


class CollectiveUnderRankGuard(Rule):
    """A collective that only some ranks reach: the others never answer, and the job hangs.

    Every rank must make the same collectives in the same order. Where a test of the rank lets one rank into
    an ``all_gather`` and the others past it, the first waits inside the call while the others go on to their
    next collective, or to the end:

        rank 0   all_gather(x)  … waits for rank 1
        rank 1   (next step)    … waits for rank 0 in the backward pass

    Nothing is printed; after the time-out of the process group (10 to 30 minutes) NCCL aborts the job.

    The rule follows both ways through every branch on the rank (``is_global_zero``, ``rank == 0``, variables
    derived from them, early ``return``, ``and``, conditional expressions, ``@rank_zero_only``) and reports
    the call at which the two sequences of collectives part. Calls that are collective inside count too:
    ``trainer.save_checkpoint`` and ``trainer.test``, ``accelerator.save_state``, ``accelerator.get_state_dict``,
    ``save_model`` of a transformers ``Trainer`` (it gathers what ZeRO and FSDP shard), ``compute()`` of a metric
    that syncs, and functions, of this file or of others, that make a collective at any depth.

    On a mesh, a rank on one axis (``mesh.get_local_rank("tp")``, ``get_tensor_model_parallel_rank()``, ``tp_rank``)
    parts the ranks of that axis and of all, and of no group along another: where only ``pp`` rank 0 reduces over
    ``mesh.get_group("dp")``, all ranks of that group do. ``rank == 0`` parts the ranks of every axis.

    How to fix: make the call on every rank, before the branch, and keep in the branch what one rank has to do
    with the result: print, write, ``self.log(..., rank_zero_only=True)``.

    For review: calls that wait for all ranks only where the model is sharded (``accelerator.get_state_dict``,
    ``save_state``, ``save_model``), in a file that names neither FSDP nor DeepSpeed; ``trainer.save_checkpoint`` in a
    file that imports ``pytorch_lightning``, which waits for nobody before 2.1; a test of a variable that is set
    under a test of the rank, and that may come out the same everywhere.

    For review: a call that is made in helpers of helpers, and a test that several ranks pass (``rank % 2 == 0``): the
    others may make theirs elsewhere, when it is their turn; what only sharded models wait for, where nothing says
    that the model is; a value that went through code that cannot be seen.

    Silent: a test of what only follows from the rank, such as a list or a text, and may be the same everywhere; who
    comes back to the call by ``continue`` in an endless loop; the same collective in both arms; complementary guards,
    such as a barrier that the other ranks meet first and rank 0 later; a call that names its own process group, but
    where a test parts the ranks of that very group;
    ``sharded or is_main_process``, which lets every rank in where the call needs all of them; other ranks that go
    into code that cannot be seen and may make the call there, or that wait for the same call in an endless loop, as
    followers do for their leader; ``trainer.save_checkpoint`` in a class that Lightning does not drive; a trainer of
    one device that is made under the guard; a file whose only process group is of one process
    (``init_process_group(..., world_size=1)``).

    When to ignore: the ranks that the guard lets in are all there are.
    """

    code, name, group = "DL101", "collective-under-rank-guard", "divergence"
    tokens = (RANK_TOKENS, COLLECTIVE_TOKENS)
    evidence = staticmethod(may_have_collective)
    bad = (
        Example(
            """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            scores = self.all_gather(self.scores)
            self.log("score", scores.mean(), rank_zero_only=True)
""",
            {6: "only rank 0 reaches this all_gather"},
        ),
        Example(
            """\
import torch.distributed as dist

def save(model, path):
    if dist.get_rank() != 0:
        return
    dist.barrier()
    model.write(path)
""",
            {6: "only rank 0 reaches this barrier"},
        ),
        Example(
            """\
import torch.distributed as dist

def evaluate(scores):
    main = dist.get_rank() == 0
    total = dist.all_reduce(scores) if main else None
    main and dist.barrier()
    return total
""",
            {5: "only rank 0 reaches this all_reduce", 6: "only rank 0 reaches this barrier"},
        ),
        Example(
            """\
from accelerate import Accelerator

accelerator = Accelerator()

def snapshot(path):
    accelerator.wait_for_everyone()
    accelerator.save_state(path)

def train(steps):
    for step in range(steps):
        if accelerator.is_main_process and step % 100 == 0:
            snapshot(f"step-{step}")
""",
            {12: "only rank 0 reaches this wait_for_everyone"},
        ),
        Example(
            """\
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics import Accuracy

class Report:
    def __init__(self):
        self.accuracy = Accuracy(task="binary")

    @rank_zero_only
    def print(self):
        print(self.accuracy.compute())
""",
            {10: "only rank 0 reaches this compute"},
        ),
        Example(
            """\
from lightning.pytorch import Trainer

def main(model, data):
    trainer = Trainer(devices=4, strategy="ddp")
    trainer.fit(model, data)
    if trainer.is_global_zero:
        trainer.test(model, data)
""",
            {7: "only rank 0 reaches this test"},
        ),
        Example(
            """\
from transformers import Trainer

class Own(Trainer):
    pass

def main(model, arguments, data):
    trainer = Own(model, arguments, train_dataset=data)
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model("final")
        trainer.save_metrics("all", {})
""",
            {10: "only rank 0 reaches this save_model"},
        ),
        Example(
            """\
import torch.distributed as dist

def share(value, group=None):
    dist.broadcast(value, 0, group=group)

def report(value, half):
    if dist.get_rank() == 0:
        share(value)
    if dist.get_rank() == 0:
        share(value, half)
""",
            {8: "only rank 0 reaches this broadcast (inside share)"},
        ),
        Example(
            """\
import torch.distributed as dist
from megatron.core import parallel_state

def step(x, loss, mesh):
    if mesh.get_local_rank("tp") == 0:
        dist.all_reduce(x, group=mesh.get_group("tp"))
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        dist.barrier()
    if parallel_state.is_pipeline_last_stage():
        dist.broadcast(loss, 0, group=parallel_state.get_pipeline_model_parallel_group())
""",
            {6: "only tp rank 0", 8: "only tp rank 0 reaches this barrier", 10: "only the last pp rank"},
        ),
    )
    good = (
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        if self.trainer.is_global_zero:
            self.log("score", scores.mean(), rank_zero_only=True)
""",
        """\
import torch.distributed as dist

def load(rank, path):
    if rank != 0:
        dist.barrier()
    data = download(path)
    if rank == 0:
        dist.barrier()
    return data
""",
        """\
import torch.distributed as dist

def share(value, group=None):
    if group is None:
        group = pair_of_this_rank()
    dist.broadcast(value, 0, group=group)

def reduce_on_node(x, rank, node_group):
    if rank == 0:
        share(x)
    if rank in (0, 1, 2, 3):
        dist.all_reduce(x, group=node_group)
    if dist.is_initialized():
        dist.barrier()
    if rank == 0 and x.isnan().any():
        raise ValueError("NaN")
    dist.barrier()
""",
        """\
def save(self, path):
    if self.use_deepspeed or self.accelerator.is_main_process:
        self.accelerator.save_state(path)
    if self.rank == 0:
        self.checkpoint_io.save_checkpoint(path)
        self.logger.log(path)
        self.report.compute()
""",
        """\
from lightning.pytorch import Trainer

def main(model, data):
    first = Trainer(devices=4, strategy="ddp")
    first.fit(model, data)
    if first.is_global_zero:
        second = Trainer(devices=1)
        second.test(model, data)
""",
        """\
import torch.distributed as dist
from megatron.core import parallel_state

def step(x, loss, mesh):
    if mesh.get_local_rank("pp") == 0:
        dist.all_reduce(x, group=mesh["dp"].get_group())
    if parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0:
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Compare what every kind of rank does in each function, for the groups along one axis after the other."""
        for axis in analysis.axes:
            asked, counts = partial(parts_ranks, axis=axis), partial(analysis.needs_all, axis=axis)
            for found, what, event in Partings(analysis).find(asked, counts):
                if _is_told_elsewhere(found) or (found.is_around and found.reached and lets_others_in(found, event)):
                    continue
                trace = (*guard_of(found), *way_to(found.visit), *instead_of(found))
                is_plain = not axis and _is_plain(found, event)
                repair = hoist(event.function, event.node, found.visit.step.label) if is_plain else None
                yield Report(event.node, message_of(found, what), trace, condition_of(analysis, found, event), repair)


def _is_told_elsewhere(found: Divergence) -> bool:
    """A variable that some ranks alone have set: DL108."""
    reason = found.atom.reason
    return reason is not None and reason.control


def _is_plain(found: Divergence, event: Event) -> bool:
    """True if one plain test of the rank, and no other, keeps ranks from the call itself."""
    guard = found.visit.guard
    tests = [each for each in event.guards if each.test.is_rank]
    is_plain = guard is not None and isinstance(guard.test, Atom) and found.is_around and not guard.other
    return is_plain and event is found.visit.step.event and found.instead is None and len(tests) == 1

"""DL101."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.formula import LOCAL_ZERO, RANK, UNKNOWN, ZERO, Atom, atoms
from distlint.analysis.sequences import Divergence
from distlint.api.tokens import COLLECTIVE_TOKENS, RANK_TOKENS, may_have_collective
from distlint.hoisting import hoist
from distlint.model import Condition, Example, Report, Rule
from distlint.partings import Partings
from distlint.tracing import guard_of, if_it_differs, instead_of, lets_others_in, way_to

_NAMES = {ZERO: "rank 0", LOCAL_ZERO: "local rank 0"}


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
    such as a barrier that the other ranks meet first and rank 0 later; a call that names its own process group;
    ``sharded or is_main_process``, which lets every rank in where the call needs all of them; other ranks that go
    into code that cannot be seen and may make the call there, or that wait for the same call in an endless loop, as
    followers do for their leader; ``trainer.save_checkpoint`` in a class that Lightning does not drive; a trainer of
    one device that is made under the guard; a file whose only process group is of one process
    (``init_process_group(..., world_size=1)``).

    When to ignore: the ranks that the guard lets in are all there are.
    """

    code, name, group = "DL101", "collective-under-rank-guard", "divergence"
    tokens = (RANK_TOKENS, COLLECTIVE_TOKENS)
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
import torch.distributed as dist

def step(rank, batches):
    for batch in batches:
        if rank > 0:
            continue
        dist.all_reduce(batch)
    if rank == 1:
        dist.broadcast(batch, 0)
    else:
        dist.barrier()
""",
            {7: "all_reduce", 9: "broadcast"},
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
def save(trainer, path):
    if trainer.global_rank == 0:
        trainer.save_checkpoint(path)
""",
            {3: "only rank 0 reaches this save_checkpoint"},
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

def gather(x, dst):
    if dist.get_rank() == dst:
        parts = [x.clone() for _ in range(dist.get_world_size())]
        dist.gather(x, parts, dst=dst)
        return parts
    dist.gather(x, dst=dst)
    return []
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
def results(self, parts, rank, everywhere):
    synchronize(self.accelerator)
    if not everywhere and rank != 0:
        return None
    merged = merge(parts)
    if everywhere:
        self.accelerator.wait_for_everyone()
    return merged
""",
        """\
from lightning.pytorch import Trainer

def main(model, data):
    first = Trainer(devices=4, strategy="ddp")
    first.fit(model, data)
    if first.is_global_zero:
        second = Trainer(devices=1)
        second.test(model, data)

def rerun(model, data):
    trainer = Trainer(devices=4, strategy="ddp")
    trainer.fit(model, data)
    if trainer.is_global_zero:
        trainer = Trainer(devices=1)
        trainer.test(model, data)
""",
    )

    def can_matter(self, source: bytes) -> bool:
        """Most files are distributed by their licence alone."""
        return may_have_collective(source)

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Compare what every kind of rank does in each function."""
        for found, what, event in Partings(analysis).find(lambda atom: atom.varies == RANK, analysis.needs_all):
            if _is_told_elsewhere(found) or (found.is_around and found.reached and lets_others_in(found, event)):
                continue
            trace = (*guard_of(found), *way_to(found.visit), *instead_of(found))
            condition = _condition(analysis, found, event)
            is_plain = _is_plain(found, event)
            repair = hoist(event.function, event.node, found.visit.step.label) if is_plain else None
            yield Report(event.node, _message(found, what), trace, condition, repair)


def _is_told_elsewhere(found: Divergence) -> bool:
    """A variable that some ranks alone have set: DL108."""
    reason = found.atom.reason
    return reason is not None and reason.control


# Ranks take turns, or meet in different functions of one protocol.
_NOT_ELSEWHERE = Condition("data", "if the other ranks do not make it elsewhere")


def _condition(analysis: Analysis, found: Divergence, event: Event) -> Condition | None:
    """What the finding depends on that the code does not say."""
    if (unproven := if_it_differs(found.atom.text, found.atom.reason)) is not None:
        return unproven
    if _needs_shards(found):
        return None if analysis.shards_states else Condition("sharded", "if the model is sharded (FSDP, DeepSpeed)")
    roots = {name.partition(".")[0] for name in analysis.index.imports.values()}
    is_saved = found.visit.step.label == "save_checkpoint" and "pytorch_lightning" in roots
    if is_saved and not analysis.shards_states:
        return Condition("sharded", "if Lightning is 2.1 or later, or the model is sharded")
    if not found.is_around and (others := _other_tests(found, event)):
        return Condition("data", f"if {others} can be so at once")
    is_direct = len(found.visit.calls) <= 1  # in the helper that is called, if not here
    return None if is_direct and _picks_one_rank(found.atom) else _NOT_ELSEWHERE


def _other_tests(found: Divergence, event: Event) -> str:
    """The tests that decide, besides the rank, who leaves early and who stays: they may rule each other out."""
    step, guard = found.visit.step.event, found.visit.guard
    if step is None or guard is None:
        return ""
    leaves = [atom for atom in atoms(guard.test) if atom.varies == UNKNOWN]
    inner = [
        each for one in {event, step} for each in one.guards if each.kind == "branch" and each.node is not guard.node
    ]
    if not leaves or not any(each.test.varies == UNKNOWN for each in inner):
        return ""
    return f"`{guard.place.text}` and what leads to the call"


def _needs_shards(found: Divergence) -> bool:
    event = found.visit.step.event
    is_numbered = found.visit.step.label == "save_state" and event is not None and not event.args and not event.options
    return found.visit.step.effect.sharded and not is_numbered  # a checkpoint that it names itself: all must agree


def _message(found: Divergence, what: str) -> str:
    ranks = _who(found.atom)
    message = f"only {ranks} reaches this {what}" if found.reached else f"{ranks} never reaches this {what}"
    if found.instead is not None:
        message += f", the others make {found.instead.step.effect.label} instead"
    return f"{message}: {'it waits' if found.reached else 'the others wait'} for ever"


def _picks_one_rank(atom: Atom) -> bool:
    return atom in _NAMES or atom.text.startswith("rank==")


def _who(atom: Atom) -> str:
    """The ranks that a test picks out, in words."""
    if atom in _NAMES:
        return _NAMES[atom]
    number = atom.text.partition("==")[2]
    return f"rank {number}" if atom.text.startswith("rank==") else f"a rank with {atom.text}"


def _is_plain(found: Divergence, event: Event) -> bool:
    """True if one plain test of the rank, and no other, keeps ranks from the call itself."""
    guard = found.visit.guard
    tests = [each for each in event.guards if each.test.is_rank]
    is_plain = guard is not None and isinstance(guard.test, Atom) and found.is_around and not guard.other
    return is_plain and event is found.visit.step.event and found.instead is None and len(tests) == 1

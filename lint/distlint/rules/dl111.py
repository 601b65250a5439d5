"""DL111."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Step, Value
from distlint.analysis.formula import RANK, Atom
from distlint.analysis.sequences import Divergence
from distlint.api.tokens import WRAPPER_TOKENS
from distlint.model import Condition, Example, Report, Rule
from distlint.partings import Partings
from distlint.syntax import ClassNode
from distlint.tracing import guard_of, model_of, way_to

_CONDITIONS = {
    "ddp": "if the model has buffers",
    "maybe": "if the model is wrapped, and is sharded or has buffers",
}
_BUFFERS = ("BatchNorm", "register_buffer")


class WrappedForwardOnOneRank(Rule):
    """Some ranks alone run the forward pass of a model that is wrapped for all.

    A wrapped model talks to the other ranks while it runs. FSDP gathers each layer's parameters;
    DistributedDataParallel broadcasts the buffers of rank 0, such as BatchNorm's statistics, in evaluation as well.
    A sanity check, a sample for the log or an evaluation on rank 0 alone waits for partners that never come:

        model = FSDP(model)
        if rank == 0:
            images = model(noise)        # rank 0: waits in an all-gather
        dist.barrier()                   # the others: wait here

    With NCCL the two calls may even be taken for partners: then the values are wrong, or the job stops a step later.

    How to fix: let all ranks run the pass, each on its part of the data, and let rank 0 alone show the result. Under
    DDP rank 0 may also run the model inside: ``model.module(x)``, or ``accelerator.unwrap_model(model)(x)``.

    The finding is sure for FSDP, and for DDP where the code shows training under the test or a model with buffers.

    Silent: ``model.module``; models that aren't seen to be wrapped; tests that are true on all ranks; both sides of the
    test run the model; DDP with ``broadcast_buffers=False``.

    When to ignore: a DDP model that has no buffers.
    """

    code, name, group = "DL111", "wrapped-forward-on-one-rank", "divergence"
    tokens = (WRAPPER_TOKENS,)
    bad = (
        Example(
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def sample(net, noise, rank, device):
    model = FSDP(net.to(device))
    if rank == 0:
        with torch.no_grad():
            return model(noise)
    return None
""",
            {8: "waits for the other ranks"},
        ),
        Example(
            """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

def evaluate(model, loader):
    model.eval()
    return [model(batch).cpu() for batch in loader]

def main(loader, device):
    model = DistributedDataParallel(Net().to(device))
    for epoch in range(10):
        train(model, epoch)
        if dist.get_rank() != 0:
            continue
        print(evaluate(model, loader))
""",
            {21: "waits for the other ranks"},
        ),
        Example(
            """\
from accelerate import Accelerator

def main(unet, loader, noise):
    accelerator = Accelerator()
    unet, loader = accelerator.prepare(unet, loader)
    for batch in loader:
        loss = unet(batch).mean()
        accelerator.backward(loss)
    if accelerator.is_main_process:
        save(unet(noise))
""",
            {10: "if the model is sharded or has buffers"},
        ),
    )
    good = (
        """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def unwrap(model):
    return model.module if isinstance(model, DDP) else model

def evaluate(model, loader):
    return [model(batch).cpu() for batch in loader]

def main(net, loader, device):
    model = DDP(net.to(device))
    scores = evaluate(model, loader)
    if dist.get_rank() == 0:
        print(scores, model.module(next(iter(loader))))
        evaluate(unwrap(model), loader)
""",
        """\
from accelerate import Accelerator

def main(unet, loader, noise):
    accelerator = Accelerator()
    unet, loader = accelerator.prepare(unet, loader)
    image = unet(noise)
    if accelerator.is_main_process:
        save(image)
        save(accelerator.unwrap_model(unet)(noise))
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every function whether some ranks alone make a pass of a wrapped model."""
        keeps = any(_keeps_buffers(event.options) for event in analysis.events("wrap"))
        all_found = list(Partings(analysis).find(_is_rank, _counts))
        trained = {id(found.visit.guard) for found, _, _ in all_found if found.visit.label == "backward"}
        for found, _, event in all_found:
            if found.visit.label != "forward" or found.visit.step.event is None:
                continue
            model = model_of(found.visit)
            condition = _condition(model, id(found.visit.guard) in trained)
            if model.wrapped and not (keeps and condition):
                yield _report(event.node, found, condition)


def _keeps_buffers(options: dict[str, Value]) -> bool:
    return "broadcast_buffers" in options and options["broadcast_buffers"].constant is False


def _is_rank(atom: Atom) -> bool:
    return atom.varies == RANK


def _counts(step: Step) -> bool:
    return step.effect.kind in ("backward", "forward")


def _condition(model: Value, is_trained: bool) -> Condition | None:
    is_wrapped = model.wrapped != "maybe"
    if is_wrapped and (model.wrapped == "fsdp" or is_trained or _has_buffers(model.target)):
        return None
    return Condition("sharded", _CONDITIONS.get(model.wrapped, "if the model is sharded or has buffers"))


def _has_buffers(target: object) -> bool:
    names = (
        (getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(target.node))
        if isinstance(target, ClassNode)
        else ()
    )
    return any(name.startswith(_BUFFERS) for name in names)


def _report(node: ast.expr, found: Divergence, condition: Condition | None) -> Report:
    guard = found.visit.guard
    test = f"`{guard.place.text}`" if guard is not None else "a test of the rank"
    message = f"only some ranks run this forward pass, by {test}: the wrapped model waits for the other ranks in it"
    return Report(node, message, (*guard_of(found), *way_to(found.visit)), condition)

"""DL214."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Value
from distlint.model import Condition, Example, Report, Rule

_SEVERAL_NODES = Condition("devices", "if this is the rank on its node and the job runs on several nodes")
_ON_SEVERAL_NODES = Condition("devices", "if the job runs on several nodes")


class LocalRankWithWorldSize(Rule):
    """A rank takes its part of the data by its number on its own node, but of as many parts as there are ranks.

    ``local_rank`` begins at 0 on every node, the world size counts the ranks of all nodes. On one node the two go
    together. On several, the same parts are read on every node, and the others by nobody:

        mine = files[local_rank::world_size]    # 2 nodes with 4 devices each: ranks 0 and 4 both read files 0, 8, …;
                                                # files 4 to 7, 12 to 15, … are read by no rank

    How to fix: take ``rank`` (``dist.get_rank()``, ``trainer.global_rank``, ``accelerator.process_index``) with the
    world size; with ``local_rank`` goes the number of ranks on the node (``LOCAL_WORLD_SIZE``).

    The rule reports slices with a stride, ``range``, ``islice``, ``number % world_size == local_rank``,
    ``local_rank * (size // world_size)``, samplers, ``shard`` calls, and ``init_process_group`` with the
    ``LOCAL_RANK`` of a launcher as its rank, which then waits for ranks that nobody is. The other way round, it reports
    ``torch.cuda.set_device`` with the rank among all ranks, in a file that names local ranks.

    Silent: the rank in a group that a call names (``get_local_rank(group)``), and a variable of that name that an
    unseen call gives; ``local_rank`` alone, as the number of a device; a number of devices or ranks of this node; files
    that spawn their processes and give ``local_rank`` to ``init_process_group`` as the rank: they are for one node
    only.

    When to ignore: the job is never started on several nodes.
    """

    code, name, group = "DL214", "local-rank-with-world-size", "wrong-value"
    tokens = ((b"ocal_rank", b"LOCAL_RANK", b"local_process_index", b"LOCALID"),)
    bad = (
        Example(
            """\
import os
import torch.distributed as dist

def shard(files):
    local_rank = int(os.environ["LOCAL_RANK"])
    return files[local_rank::dist.get_world_size()]
""",
            {6: "on several nodes"},
        ),
        Example(
            """\
from torch.utils.data import DataLoader, DistributedSampler

def loader(data, args):
    sampler = DistributedSampler(data, num_replicas=args.world_size, rank=args.local_rank)
    return DataLoader(data, sampler=sampler)
""",
            {4: "on several nodes"},
        ),
        Example(
            """\
import os
import torch.distributed as dist

def start():
    local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", rank=local_rank, world_size=world_size)
""",
            {6: "on several nodes"},
        ),
        Example(
            """\
import torch.distributed as dist

def mine(samples, local_rank):
    for number, sample in enumerate(samples):
        if number % dist.get_world_size() == local_rank:
            yield sample
""",
            {5: "on several nodes"},
        ),
        Example(
            """\
from accelerate import Accelerator

def embed(accelerator: Accelerator, model, texts):
    size = len(texts) // accelerator.num_processes
    start = accelerator.local_process_index * size
    return [model(text) for text in texts[start:start + size]]
""",
            {5: "on several nodes"},
        ),
        Example(
            """\
import os
import torch

def start():
    local_rank = int(os.environ["RANK"])
    torch.cuda.set_device(local_rank)
""",
            {6: "of a device"},
        ),
    )
    good = (
        """\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

def shard(files, data):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    copied = files[local_rank::int(os.environ["LOCAL_WORLD_SIZE"])]
    return sampler, copied, files[rank::world_size]
""",
        """\
import torch
import torch.distributed as dist

def spawned(local_rank, world_size, data):
    dist.init_process_group("gloo", rank=local_rank, world_size=world_size)
    return data[local_rank::world_size]
""",
        """\
import torch
import torch.distributed as dist

def main(local_rank, files):
    world_size = torch.cuda.device_count()
    for number in range(local_rank, len(files), world_size):
        yield files[number]
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every place where a rank takes its part by what number and of how many parts."""
        if any(_begins_on_one_node(event) for event in analysis.events("setup")):
            return
        for event in analysis.events("share_of", "sampler", "setup"):
            which, count = _parts(event)
            if which is not None and _is_on_node(event, which) and count is not None and count.family == "world":
                message = (
                    "the number of the rank on its node goes with the number of ranks of all nodes: on several nodes "
                    "some parts are taken several times, and others by no rank"
                )
                yield Report(event.node, message, condition=_SEVERAL_NODES)
        yield from _devices(analysis)


def _devices(analysis: Analysis) -> Iterator[Report]:
    """Where the rank among all is taken for a device of this node, in a file that knows of local ranks."""
    for event in analysis.events("set_device"):
        if event.args and event.args[0].family == "rank":
            message = (
                "this takes the rank among all ranks for the number of a device, and a second node has no devices of "
                "these numbers: take the rank on the node (LOCAL_RANK)"
            )
            yield Report(event.node, message, condition=_ON_SEVERAL_NODES)


def _is_on_node(event: Event, which: Value) -> bool:
    """True if a local rank is that on the node: not in a group that a call names, nor what an unseen call gives."""
    if which.family != "local_rank" or which.reason is None:
        return False
    text = which.reason.text
    if text.isidentifier():
        names = (each for each in ast.walk(event.function.node) if isinstance(each, ast.Name) and each.id == text)
        return all(isinstance(each.ctx, ast.Load) for each in names)
    _, _, given = text.partition("(")
    return given[:1] in ("", ")", '"', "'")


def _parts(event: Event) -> tuple[Value | None, Value | None]:
    if event.kind == "setup":
        return event.options.get("rank"), event.options.get("world_size")
    if event.kind == "sampler":
        return event.argument(2, "rank"), event.argument(1, "num_replicas")
    return event.args[0], event.args[1]


def _begins_on_one_node(event: Event) -> bool:
    """True if the local rank, which no launcher has set, is given as the rank: processes are spawned on this node."""
    rank = event.options.get("rank")
    is_launched = rank is not None and rank.reason is not None and "LOCAL_RANK" in rank.reason.text
    return rank is not None and rank.family == "local_rank" and not is_launched

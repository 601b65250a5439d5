"""Accelerate: loaders in which every sample counts once, and ``gather_for_metrics`` as ever.

Accelerate repeats samples so that all ranks get equal batches, and its ``gather_for_metrics`` cuts
the repeats off again; a metric that is updated with such a batch counts them twice. The loader made
here repeats nothing, so batches may be uneven, and Accelerate's ``gather`` wants equal shapes. So
``gather_for_metrics`` is replaced, once for each ``Accelerator``, by one that joins uneven rows
outside of loops over Accelerate's own loaders, and is Accelerate's own in those. ``gather`` is
replaced by one that refuses uneven rows while a loader made here is being read.
"""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from distmetrics.collectives.ops import all_gather_cat, gather_objects
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.data.exact import exact_by
from distmetrics.data.rank_loader import RankLoader, Step
from distmetrics.errors import InputError
from distmetrics.integrations.accelerate_log import attach_log
from distmetrics.tree import flatten, map_leaves

__all__ = ["attach_log", "prepare"]


def prepare(
    accelerator: Accelerator,
    loader: Any,
    *,
    dealt: bool | None = None,
    equal_batches: bool | None = None,
    seed: int = 0,
    comm: Communicator | None = None,
) -> Any:
    """Return a loader for evaluation with every sample on exactly one rank, on the right device.

    The ranks' n-th batches joined are the next rows of the data in its order. ``metric.update``
    with a batch is right as it is, and so is ``accelerator.gather_for_metrics``, which gives the
    rows in the order of the data, none twice and none missing. Batches of the ranks may differ by a
    row, and ``accelerator.gather`` of those is an error on every rank.

    Where there is no sample for each rank's last batch (batch size 1, fewer samples than ranks, a
    batch sampler of one's own, data without an order), a rank may have one batch fewer. When it is
    through it takes part in the others' ``gather_for_metrics``, with no rows, and its loop ends
    when theirs do. Rank 0 always has all rows; a rank that was through has those of the other
    rounds, and warns. Use ``equal_batches=True`` where all ranks need all rows, to stop early by
    them, say. A loop with any other collective for each batch
    (``accelerator.pad_across_processes``, or a model that is sharded or has buffers under DDP)
    needs ``equal_batches=True`` then: the rank gets one more batch, which ``gather_for_metrics``
    leaves out. For ``metric.update`` pass ``distmetrics.data.fresh(rows)``.

    Args:
        accelerator: the ``Accelerator``; all its processes must call this.
        loader: a loader, prepared by Accelerate or not, or any iterable of batches.
        dealt: whether each rank's stream is its own share; see :func:`distmetrics.data.exact`.
        equal_batches: give all ranks as many batches. By default not, and reading the loader is an
            error on every rank where that could hang a prepared model. False does without the
            check: for a model that is not called through Accelerate's wrapper.
        seed: of the order of a sampler without a generator; the same on all ranks.
        comm: whose ranks get parts; default that in force. Where ranks share samples, a layout of
            all ranks, ``layout.of(accelerator)``: data is dealt out to its shards.

    Raises:
        InputError: as :func:`distmetrics.data.exact`; or the ranks that share data are not all.

    >>> from accelerate import Accelerator
    >>> from torch.utils.data import DataLoader
    >>> loader = prepare(Accelerator(cpu=True), DataLoader(range(3), batch_size=2))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2]]
    """
    comm = chosen(comm)
    whole = comm.whole
    mesh = getattr(accelerator, "torch_device_mesh", None)
    shared = {"tp", "cp", "sp"} & set(getattr(mesh, "mesh_dim_names", None) or ())
    shared = shared if whole is comm else set()
    if whole.world_size != accelerator.num_processes or shared:
        raise InputError(
            f"prepare deals out to {whole.world_size} ranks, and Accelerate has "
            f"{accelerator.num_processes}" + (f", with {sorted(shared)} in groups" * bool(shared)),
            do="make the Accelerator first; where ranks share a batch, pass "
            "comm=layout.of(accelerator), or keep Accelerate's loader.",
        )
    part = exact_by(
        loader,
        comm,
        in_rounds=True,
        dealt=dealt,
        equal_batches=bool(equal_batches),
        seed=seed,
    )
    if accelerator.device_placement:
        part.device = accelerator.device
    checked = accelerator if equal_batches is None else None
    return _Prepared(part, _gather_of(accelerator, comm), checked)


class _Prepared(RankLoader):
    """A rank's part that tells ``gather_for_metrics`` what is being read."""

    def __init__(self, part: RankLoader, gather: "_Gather", checked: Accelerator | None) -> None:
        super().__init__(part, part.device, equal_batches=part.equal_batches)
        self._gather = gather
        self._checked = checked

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        if self._checked is not None and self.loader.needs_filler():
            _check_models(self._checked)
        reading = self._gather.begin()
        try:
            for step in self.loader.steps():
                reading.step = step
                yield step
        finally:
            self._gather.end(reading)


class _Reading:
    """A loader that is being read.

    Attributes:
        outer: the loader of Accelerate around it, or None.
        step: what it gave last.
    """

    def __init__(self, outer: Any) -> None:
        self.outer = outer
        self.step = Step(None)


class _Gather:
    """``gather_for_metrics`` of one accelerator, while our loaders are read and otherwise."""

    def __init__(self, accelerator: Accelerator, comm: Communicator) -> None:
        self._original = accelerator.gather_for_metrics
        self._gather = accelerator.gather
        self._state: Any = accelerator.gradient_state
        self._comm = comm
        self._readings: list[_Reading] = []

    def begin(self) -> _Reading:
        """Return a new reading; rows that are gathered from now on are of its batches."""
        reading = _Reading(self._state.active_dataloader)
        self._readings.append(reading)
        return reading

    def end(self, reading: _Reading) -> None:
        """Forget a reading, once no rank can gather rows of its last round any more."""
        self._readings.remove(reading)
        missed = False
        while not reading.step.is_full:
            if all(rows is None for rows in self._exchanged(None)):
                break
            missed = True
        if missed and reading.step.is_absent:
            warnings.warn(
                "gather_for_metrics: the rows of the last round are on the ranks that have a batch "
                "in it, rank 0 first; pass prepare(..., equal_batches=True) for all rows on all "
                "ranks",
                stacklevel=3,
            )

    def __call__(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Do what ``Accelerator.gather_for_metrics`` does."""
        reading = self._innermost()
        if reading is None:
            return self._original(input_data, use_gather_object=use_gather_object)
        if self._comm.world_size == 1:
            return input_data
        step = reading.step
        leaves, spec = flatten(input_data)
        if use_gather_object or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            items = [] if step.rows == 0 else list(input_data)
            return list(itertools.chain.from_iterable(self._objects(items)))
        if step.is_full:
            rows = map_leaves(_no_rows, input_data) if step.rows == 0 else input_data
            return all_gather_cat(rows, comm=self._comm, name="gather_for_metrics")
        ranks = self._objects([leaf.reshape(1) if leaf.ndim == 0 else leaf for leaf in leaves])
        joined = []
        for old, *parts in zip(leaves, *ranks, strict=True):
            joined.append(torch.cat(parts).to(old.device))
        return spec.unflatten(joined)

    def gather(self, tensor: Any) -> Any:
        """Do what ``Accelerator.gather`` does, where the ranks' shapes are equal as it needs them.

        Raises:
            InputError: they are not, and it would hang, end the process, or mix rows up.
        """
        if self._readings and self._innermost() is not None:
            shapes = [list(leaf.shape) for leaf in flatten(tensor)[0] if hasattr(leaf, "shape")]
            ranks = self._exchanged(shapes)
            if any(theirs != shapes for theirs in ranks):
                raise InputError(
                    "gather: the ranks have different shapes",
                    per_rank={rank: f"{theirs or 'no batch'}" for rank, theirs in enumerate(ranks)},
                    do="call accelerator.gather_for_metrics, which joins batches of any length.",
                    rank=self._comm.rank,
                )
        return self._gather(tensor)

    def _innermost(self) -> _Reading | None:
        """Return what is being read, a new reading for nothing; None for a loader of Accelerate."""
        reading = self._readings[-1] if self._readings else _Reading(None)
        return reading if self._state.active_dataloader is reading.outer else None

    def _objects(self, rows: list[Any]) -> list[Any]:
        """Return the lists of all ranks that are not through."""
        return [theirs for theirs in self._exchanged(rows) if theirs is not None]

    def _exchanged(self, rows: list[Any] | None) -> list[Any]:
        """Return what each rank gathers: None if it is through."""
        return gather_objects(
            rows, lambda data: data, "gather_for_metrics", allow_pickle=True, comm=self._comm
        )


def _gather_of(accelerator: Accelerator, comm: Communicator) -> _Gather:
    """Return the accelerator's ``gather_for_metrics``, replaced by ours the first time."""
    current: Any = accelerator.gather_for_metrics
    if isinstance(current, _Gather):
        return current
    gather = _Gather(accelerator, comm)
    vars(accelerator).update(gather_for_metrics=gather, gather=gather.gather)
    return gather


def _no_rows(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.new_empty(0)


def _check_models(accelerator: Accelerator) -> None:
    """Refuse to read unequal numbers of batches where a model's forward pass waits for all."""
    for model in accelerator._models:
        if _waits(model, accelerator):
            raise InputError(
                "the ranks may get unequal numbers of batches, and the forward pass of the "
                f"prepared {type(getattr(model, 'module', model)).__name__} waits for all ranks",
                do="prepare(accelerator, loader, equal_batches=True), and update metrics with "
                "distmetrics.data.fresh(rows); gather_for_metrics leaves out the same rows.",
            )


def _waits(model: Any, accelerator: Accelerator) -> bool:
    """True if the forward pass of a prepared model has a collective in it.

    DDP sends rank 0's buffers to all ranks, in evaluation too.
    """
    kind = accelerator.distributed_type
    if kind == DistributedType.NO:
        return False
    if not kind.name.startswith("MULTI_"):  # FSDP, DeepSpeed, Megatron
        return True
    sends_buffers = getattr(accelerator.ddp_handler, "broadcast_buffers", True)
    return sends_buffers and next(model.buffers(), None) is not None

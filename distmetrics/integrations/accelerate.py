"""Accelerate: loaders in which every sample counts once, and ``gather_for_metrics`` as ever.

Accelerate repeats samples so that all ranks get equal batches, and its ``gather_for_metrics`` cuts
the repeats off again; a metric that is updated with such a batch counts them twice. The loader made
here repeats nothing, so batches may be uneven, and Accelerate's ``gather`` needs equal shapes. So
both are replaced, once for each ``Accelerator``: ``gather_for_metrics`` joins uneven rows outside
of loops over Accelerate's own loaders, and ``gather`` refuses them. ``attach_log`` replaces
``accelerator.log``: Accelerate calls trackers on the main process alone, with its own values.
"""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from distmetrics.arguments import POSITIVE, check
from distmetrics.collectives.ops import all_gather_cat, gather_objects
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.data.exact import exact_by
from distmetrics.data.rank_loader import RankLoader, Step
from distmetrics.errors import ConfigurationError, InputError, optional
from distmetrics.log.kinds import KINDS
from distmetrics.log.log import Log
from distmetrics.log.writers import numbers
from distmetrics.tree import flatten, map_leaves

with optional("accelerate", "distmetrics.integrations.accelerate"):
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

__all__ = ["attach_log", "prepare"]

_OURS = "distmetrics"
_OTHERS = ", ".join(f'"{kind}"' for kind in KINDS if kind != "mean")
_EXAMPLE = f'log_kwargs={{"{_OURS}": {{"weight": tokens, "same": ["lr"]}}}}'


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
    batch sampler of one's own, data without an order), a rank may have one batch fewer. It then
    takes part in the others' ``gather_for_metrics`` with no rows. Rank 0 always has all rows; a
    rank that was through lacks those of the last round, and warns. Loops with any other collective
    for each batch, and those that need all rows on all ranks, need ``equal_batches=True``: the rank
    gets one more batch, which ``gather_for_metrics`` leaves out. For ``metric.update`` pass
    ``distmetrics.data.fresh(rows)``.

    Args:
        accelerator: the ``Accelerator``; all its processes must call this.
        loader: a ``DataLoader``, prepared by Accelerate or not, or any iterable of batches.
        dealt: whether each rank's stream is its own share; see :func:`distmetrics.data.exact`.
        equal_batches: True gives all ranks as many batches. None does not, and reading the loader
            is an error on every rank where that could hang a prepared model. False leaves out this
            check: for a model that is not called through Accelerate's wrapper.
        seed: of the order of a sampler without a generator; the same on all ranks.
        comm: the ranks that get parts; default the current communicator. Where ranks share samples,
            a layout of all ranks, ``layout.of(accelerator)``: data is dealt out to its shards.

    Raises:
        InputError: as :func:`distmetrics.data.exact`; or the ranks of ``comm`` are not
            Accelerate's, or share samples without a layout. When the loader is read: see
            ``equal_batches``.

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
    return _PreparedLoader(part, _gather_of(accelerator, comm), checked)


class _PreparedLoader(RankLoader):
    """A rank's part that tells ``gather_for_metrics`` what is being read."""

    def __init__(
        self, part: RankLoader, gather: "_GatherForMetrics", checked: Accelerator | None
    ) -> None:
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


@dataclass(eq=False)
class _Reading:
    """A loader that is being read."""

    outer: Any  # the loader of Accelerate around it, or None
    step: Step = field(default_factory=lambda: Step(None))  # what it gave last


class _GatherForMetrics:
    """``gather_for_metrics`` of one accelerator, while our loaders are read and otherwise."""

    def __init__(self, accelerator: Accelerator, comm: Communicator) -> None:
        self._original, self._gather = accelerator.gather_for_metrics, accelerator.gather
        self._state: Any = accelerator.gradient_state
        self._comm = comm
        self._readings: list[_Reading] = []

    def begin(self) -> _Reading:
        """Return a new reading; rows that are gathered from now on are of its batches."""
        self._readings.append(_Reading(self._state.active_dataloader))
        return self._readings[-1]

    def end(self, reading: _Reading) -> None:
        """Forget a reading, once no rank can gather rows of its last round any more."""
        self._readings.remove(reading)
        missed = False
        while not reading.step.is_full and any(rows is not None for rows in self._ranks(None)):
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
            ranks = self._ranks([] if step.rows == 0 else list(input_data))
            return list(itertools.chain.from_iterable(filter(None, ranks)))
        if step.is_full:
            rows = input_data
            if step.rows == 0:
                rows = map_leaves(lambda leaf: leaf.new_empty(0), input_data)
            return all_gather_cat(rows, comm=self._comm, name="gather_for_metrics")
        # In a round that is not full a rank may be through, which has no tensors to join.
        ranks = self._ranks([leaf.reshape(1) if leaf.ndim == 0 else leaf for leaf in leaves])
        there = [parts for parts in ranks if parts is not None]
        joined = [torch.cat(parts) for parts in zip(*there, strict=True)]
        return spec.unflatten([new.to(old.device) for new, old in zip(joined, leaves, strict=True)])

    def gather(self, tensor: Any) -> Any:
        """Do what ``Accelerator.gather`` does, where the ranks' shapes are equal as it needs them.

        Raises:
            InputError: they are not, and it would hang, end the process, or mix rows up.
        """
        if self._readings and self._innermost() is not None:
            shapes = [list(leaf.shape) for leaf in flatten(tensor)[0] if hasattr(leaf, "shape")]
            ranks = self._ranks(shapes)
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

    def _ranks(self, rows: list[Any] | None) -> list[Any]:
        """Return what each rank gathers: None if it is through."""
        return gather_objects(
            rows, lambda data: data, "gather_for_metrics", allow_pickle=True, comm=self._comm
        )


def _gather_of(accelerator: Accelerator, comm: Communicator) -> _GatherForMetrics:
    """Return the accelerator's ``gather_for_metrics``, replaced by ours the first time."""
    current: Any = accelerator.gather_for_metrics
    if isinstance(current, _GatherForMetrics):
        return current
    gather = _GatherForMetrics(accelerator, comm)
    vars(accelerator).update(gather_for_metrics=gather, gather=gather.gather)
    return gather


def _check_models(accelerator: Accelerator) -> None:
    """Refuse to read unequal numbers of batches where a model's forward pass waits for all."""
    kind = accelerator.distributed_type
    is_ddp = kind.name.startswith("MULTI_")  # others are FSDP, DeepSpeed, Megatron
    # DDP sends rank 0's buffers to all ranks, in evaluation too.
    sends_buffers = getattr(accelerator.ddp_handler, "broadcast_buffers", True)
    for model in accelerator._models if kind != DistributedType.NO else ():
        if not is_ddp or (sends_buffers and any(True for _ in model.buffers())):
            raise InputError(
                "the ranks may get unequal numbers of batches, and the forward pass of the "
                f"prepared {type(getattr(model, 'module', model)).__name__} waits for all ranks",
                do="prepare(accelerator, loader, equal_batches=True), and update metrics with "
                "distmetrics.data.fresh(rows); gather_for_metrics leaves out the same rows.",
            )


def attach_log(accelerator: Accelerator, log: Log, *, every: int = 50) -> None:
    """Let ``accelerator.log`` give its trackers a row each ``every`` steps, of all ranks.

    ``accelerator.log({"loss": loss}, step=step, log_kwargs={"distmetrics": {"weight": tokens}})``
    on every rank and in every step adds up on this rank, without a collective and without waiting
    for the device. When the first step of the next row is logged, all ranks' values are combined in
    one exchange, and the trackers get the row under its last step. ``accelerator.end_training()``
    gives them the last row. Calls with the same ``step`` belong together.

    Each value needs a way to be combined. ``{"weight": tokens}`` makes all values of the call
    means, each counted by the weight; ``{"same": ["lr"], "max": ["grad_norm"]}`` names those that
    are combined in another way: "sum", "max", "min", "same", "std" or "quantile". Trackers get each
    element of an array, as ``name/0``. Options of other trackers in ``log_kwargs`` are passed on
    with the row.

    Every rank calls this, and after it ``accelerator.log``: not the main process alone.

    Args:
        accelerator: the ``Accelerator``.
        log: adds up; may have a layout, and writers of its own. What else is logged with it is in
            the same rows.
        every: number of steps of a row.

    Raises:
        ConfigurationError: a log is attached already, or ``every`` is not positive. In a call of
            ``accelerator.log``: a value has no way to be combined.

    >>> from accelerate import Accelerator
    >>> accelerator = Accelerator(cpu=True)
    >>> attach_log(accelerator, Log(writers=[lambda row, step: print(step, row)]), every=2)
    >>> for step, (loss, tokens) in enumerate([(0.25, 12), (0.75, 4), (1.0, 8)]):
    ...     accelerator.log({"loss": loss}, step, {"distmetrics": {"weight": tokens}})
    1 {'loss': 0.375}
    >>> accelerator.end_training()
    2 {'loss': 1.0}
    """
    check("attach_log", {"every": every}, {"every": POSITIVE})
    if isinstance(accelerator.log, _RowsForTrackers):
        raise ConfigurationError(
            "attach_log: the accelerator has a log attached already",
            do="use that one.",
        )
    logging = _RowsForTrackers(accelerator, log, every)
    vars(accelerator).update(log=logging, end_training=logging.end)


class _RowsForTrackers:
    """The ``log`` of one accelerator."""

    def __init__(self, accelerator: Accelerator, log: Log, every: int) -> None:
        self._theirs = accelerator.log
        self._end_theirs = accelerator.end_training
        self._every = every
        self._log = log
        self._step: int | None = None
        self._steps = 0  # that have begun since the last row
        self._others: dict[str, Any] = {}  # for other trackers, with the next row

    def __call__(
        self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Any = None
    ) -> None:
        """Add up what ``Accelerator.log`` would give to trackers."""
        others = dict(log_kwargs or {})
        how = others.pop(_OURS, {})
        kinds = _kinds(values, how)
        if step is None or step != self._step:
            if self._steps == self._every:
                self._write()
            self._steps += 1
            self._step = step
        self._others |= others
        for name, value in values.items():
            weight = {"weight": how["weight"]} if kinds[name] == "mean" else {}
            getattr(self._log, kinds[name])(name, value, **weight)

    def _write(self) -> None:
        """Give trackers a row."""
        row = self._log.flush(self._step)
        others, self._others, self._steps = self._others, {}, 0
        if row:
            self._theirs(numbers(row), self._step, others)

    def end(self) -> None:
        """Do what ``Accelerator.end_training`` does, with a last row."""
        self._write()
        self._end_theirs()


def _kinds(values: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, str]:
    """Return how each value is combined.

    Raises:
        ConfigurationError: it is not said of each, or of one in two ways, or of another name.
    """
    kinds: dict[str, str] = {}
    for kind, names in how.items():
        if kind == "weight":
            continue
        if kind not in KINDS or kind == "mean" or isinstance(names, str):
            raise _refusal(f"cannot read {kind!r}: {names!r}")
        for name in names:
            if name not in values or name in kinds:
                what = "in two ways" if name in kinds else "and it is not logged"
                raise _refusal(f"says how {name!r} is combined, {what}")
            kinds[name] = kind
    for name in values:
        if name not in kinds and "weight" not in how:
            raise _refusal(f"does not say how {name!r} of all ranks is combined")
        kinds.setdefault(name, "mean")
    return kinds


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"accelerator.log, with attach_log, {what}",
        do=f"pass {_EXAMPLE}: a weight for means, and names under {_OTHERS}.",
    )

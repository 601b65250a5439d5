"""Where ``self.log`` ends up: the options are settled here, and the values kept until the step or
epoch is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.comm.base import Communicator, call_site
from distmetrics.errors import ConfigurationError, InputError, Site
from distmetrics.train.log import EpochLog, Logged
from distmetrics.train.log_options import Options, as_size, check, check_metric
from distmetrics.train.metric_state import metrics_in, updated
from distmetrics.train.sums import Key, Kind, Sum
from distmetrics.train.values import as_number, is_metric, metric_at
from distmetrics.tree import flatten

Stage = Literal["train", "validate", "test"]
_NO_BATCH = object()
_STAGES = {"train": "epoch", "validate": "validation", "test": "test"}


class _Way(NamedTuple):
    """How a name is logged: settled at its first call, and again where anything of the first line
    has changed.

    Attributes:
        total: what adds up the epoch's values of this rank, if there is to be one.
    """

    options: Options
    loader: int
    in_step: bool
    key: Key
    step_key: Key
    kind: Kind
    on_step: bool
    sync_now: bool
    total: Sum | None


class StageLog:
    """The log of one epoch of one stage on one rank; ``strict`` refuses names that only some ranks
    log.

    Attributes:
        stage: "train", "validate" or "test".
        step_values: the latest value of each name that is logged on each step.
        step_local: which of those are this rank's own.
        prog_bar: the labels that the progress bar shows.
        unlogged: the labels that loggers do not get.
    """

    def __init__(
        self,
        stage: Stage,
        comm: Communicator,
        module: nn.Module,
        *,
        loaders: int = 1,
        strict: bool = True,
    ) -> None:
        self.stage = stage
        self.step_values: dict[str, Tensor] = {}
        self.step_local: set[str] = set()
        self.prog_bar: set[str] = set()
        self.unlogged: set[str] = set()
        self._comm = comm
        self._module = module
        self._several = loaders > 1
        self._epoch = EpochLog(strict=strict)
        self._step = EpochLog()
        self._synced: dict[
            str, Site | None
        ] = {}  # the step's names with ``sync_dist=True``, and whose lines they are
        self._batch: Any = _NO_BATCH
        self._left: Any = (
            _NO_BATCH  # the batch of the step that is over, while callbacks hear of it
        )
        self._batch_size: int | None = None
        self._loader = -1
        self._paths: dict[int, str] = {}
        self._labels: dict[str, Key] = {}
        self._ways: dict[str, _Way] = {}
        self._held = (
            {} if stage == "train" else updated(metrics_in(module))
        )  # metrics with samples from before

    def begin_step(self, batch: Any, loader: int = 0) -> None:
        """Say that what is logged from now on is about ``batch``."""
        self._batch, self._left, self._batch_size = batch, _NO_BATCH, None
        self._loader = loader if self._several else -1
        self._epoch.batches[self._loader] = self._epoch.batches.get(self._loader, 0) + 1

    def end_step(self) -> None:
        """Say that the step is over: what callbacks log from now on is for the epoch, weighted by
        its batch.
        """
        self._batch, self._left, self._loader = _NO_BATCH, self._batch, -1

    def leave_batch(self) -> None:
        """Say that no batch is under way: what is logged from now on is about the epoch."""
        self._left = _NO_BATCH

    def log(self, name: str, value: Any, options: Options) -> None:
        """Log a value or a metric object; the options are those of
        :meth:`distmetrics.train.Module.log`.
        """
        if (
            options.batch_size is not None and type(options.batch_size) is not int
        ):  # an array can't be compared below
            options = options._replace(batch_size=as_size(name, options.batch_size))
        if type(value) is Tensor and value.ndim == 0 and value.is_floating_point():  # most values
            number: Tensor | float = value.item() if value.is_cpu else value.detach()
        elif type(value) is float:
            number = value
        elif is_metric(value):
            self._log_metric(name, value, options)
            return
        else:
            exact = as_number(f"the value of {name!r}", value)
            number = exact.item() if exact.is_cpu else exact
        way = (
            self._ways.get(name) if isinstance(name, str) else None
        )  # what else it may be is refused below
        in_step = self._batch is not _NO_BATCH
        if way is None or way[:3] != (options, self._loader, in_step):
            way = self._ways[name] = self._settle(name, options)
        if options.rank_zero_only and self._comm.rank != 0:
            return
        weighted = way.kind.reduce_fx == "mean" and (way.total is not None or way.sync_now)
        weight = self._weight(name, options) if weighted else 1.0
        if way.total is not None:
            way.total.steps += in_step
            way.total.add(number, weight)
        if way.sync_now:
            self._synced.setdefault(name, call_site())
            self._step.add(way.step_key, Kind(way.kind.reduce_fx), number, weight)
        elif way.on_step:
            self._keep(way.step_key, number, local=True)

    def _log_metric(self, name: str, metric: Any, options: Options) -> None:
        check(name, options)
        check_metric(name, options)
        key = Key(name, self._loader)
        self._show(key, options)
        self._epoch.add(key, Kind(metric=self._path(name, metric)))
        self._claim(key, key)

    def _settle(self, name: str, options: Options) -> _Way:
        """Find out what the options mean here."""
        check(name, options)
        key = Key(name, self._loader)
        on_step, on_epoch = self._when(name, options)
        self._show(key, options)
        step_key = key._replace(name=f"{name}_step") if on_epoch else key
        forked = (step_key, key._replace(name=f"{name}_epoch")) if on_step and on_epoch else ()
        self._claim(key, key, *forked)
        kind = Kind(options.reduction, options.scope, forked=on_step)
        sync_now = on_step and self.stage == "train" and bool(options.sync_dist)
        in_step = self._batch is not _NO_BATCH
        counts = on_epoch and not (options.rank_zero_only and self._comm.rank != 0)
        total = self._epoch.sum_of(key, kind) if counts else None
        return _Way(options, self._loader, in_step, key, step_key, kind, on_step, sync_now, total)

    def _show(self, key: Key, options: Options) -> None:
        if options.prog_bar:
            self.prog_bar.add(key.label)
        if not options.logger:
            self.unlogged.add(key.label)

    def _claim(self, key: Key, *known_as: Key) -> None:
        """Refuse a name under which another value, or another's ``name_step`` or ``name_epoch``, is
        known already.
        """
        for alias in known_as:
            other = self._labels.setdefault(alias.label, key)
            if other != key:
                raise ConfigurationError(
                    f"{alias.label!r} is what {key.label!r} and {other.label!r} would both be "
                    "known as: a name logged "
                    "on_step and on_epoch has name_step and name_epoch too",
                    do="log one of them under another name.",
                )

    def _when(self, name: str, options: Options) -> tuple[bool, bool]:
        """Settle on_step and on_epoch: a training step is logged by itself, all else for the epoch."""
        in_step = self._batch is not _NO_BATCH
        by_step = in_step and self.stage == "train"
        on_step = by_step if options.on_step is None else options.on_step
        on_epoch = not by_step if options.on_epoch is None else options.on_epoch
        if on_step and not in_step:
            raise ConfigurationError(f"{name!r} is logged on_step, and no step is under way here")
        if not (on_step or on_epoch):
            raise ConfigurationError(
                f"{name!r} is logged neither on_step nor on_epoch: it would be lost"
            )
        return on_step, on_epoch

    def log_values_of(self, metric: Any, options: Options) -> None:
        """Log each value of a metric that has several, a ``MetricCollection`` say, under its own
        name.
        """
        check_metric("log_dict", options)
        path = self._path("log_dict", metric)
        self._epoch.add(Key(f"{path}.*", self._loader), Kind(metric=path, bare=True))

    def sync_step(self, *, everyone: bool) -> None:
        """Combine the step's values that were logged with ``sync_dist=True``.

        Args:
            everyone: whether every rank has a batch in this step. A rank without one can't know
                whether the others log, so all ranks exchange in such a step.
        """
        if self._step or not everyone:
            logged = self._step.close(
                self._comm, self._module, name=f"{self.stage} step", told=self._told()
            )
            for key, value in logged.values.items():
                self._keep(key, value, local=False)
            self._step = EpochLog()
            self._synced.clear()

    def _told(self) -> Site | None:
        """Return the line that the step's exchange is made for: the first of those that log with
        ``sync_dist=True``.
        """
        name, site = next(iter(self._synced.items()), ("", None))
        if site is None:
            return None
        more = f" and {len(self._synced) - 1} more" if len(self._synced) > 1 else ""
        return site._replace(function=f"{site.function}, self.log({name!r}, sync_dist=True){more}")

    def close(self) -> Logged:
        """End the epoch: combine what all ranks logged in it. Every rank must call it."""
        return self._epoch.close(self._comm, self._module, name=f"{self.stage} epoch")

    def state(self) -> dict[str, Any]:
        """Return what this rank has logged so far, of plain types; see :meth:`load`."""
        return {
            "epoch": self._epoch.state(),
            "steps": {name: value.detach().cpu() for name, value in self.step_values.items()},
            "labels": [
                sorted(labels) for labels in (self.step_local, self.prog_bar, self.unlogged)
            ],
        }

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states of this epoch: this rank's own, or several ranks', which are combined."""
        for state in states:
            self._epoch.load(state["epoch"])
            self.step_values.update(state["steps"])
            for labels, saved in zip(
                (self.step_local, self.prog_bar, self.unlogged), state["labels"], strict=True
            ):
                labels.update(saved)

    def discard(self) -> None:
        """Forget what was logged and reset the metric objects; nothing is sent."""
        for path in self._epoch.metrics():
            metric_at(self._module, path).reset()

    def _keep(self, key: Key, value: Tensor | float, *, local: bool) -> None:
        if isinstance(value, Tensor):
            kept = value.to(torch.float64, copy=True)
        else:
            kept = torch.tensor(value, dtype=torch.float64)
        self.step_values[key.label] = kept
        if local and self._comm.world_size > 1:
            self.step_local.add(key.label)

    def _weight(self, name: str, options: Options) -> float:
        """Return the number of samples behind a value; outside a step each rank counts once."""
        if options.batch_size is not None:
            return float(options.batch_size)
        batch = self._left if self._batch is _NO_BATCH else self._batch
        if batch is _NO_BATCH:
            return 1.0
        if self._batch_size is None:
            self._batch_size = batch_size_of(batch, name)
        return float(self._batch_size)

    def _path(self, name: str, metric: Any) -> str:
        """Find the attribute of the module that holds the metric: a rank without batches finds it
        there too.
        """
        path = self._paths.get(id(metric))
        if path is None:
            path = self._paths[id(metric)] = _find(self._module, metric, name)
            held = next((held for held in self._held if f"{path}.".startswith(f"{held}.")), None)
            if held is not None:
                raise ConfigurationError(
                    f"self.{path} holds {self._held[held]} updates from before this "
                    f"{_STAGES[self.stage]}: their "
                    f"samples would count in {name!r}",
                    likely="one metric object for training and for evaluation.",
                    do="keep one for each, or call its reset() before.",
                )
        return path


def _find(module: nn.Module, metric: Any, name: str) -> str:
    for prefix, owner in module.named_modules():
        for attribute, value in (*owner.named_children(), *vars(owner).items()):
            if value is metric:
                return f"{prefix}.{attribute}".lstrip(".")
    raise ConfigurationError(
        f"the metric object logged as {name!r} is no attribute of the module: a rank without "
        "batches could not "
        "find it",
        do="assign it in __init__: self.some_name = metric; several go into an nn.ModuleDict.",
    )


def batch_size_of(batch: Any, name: str) -> int:
    """Return the number of samples in a batch: the first dimension that all its tensors share.

    Raises:
        InputError: there is no tensor, or their first dimensions differ.

    >>> import torch
    >>> batch_size_of({"image": torch.zeros(8, 3, 32, 32), "label": torch.zeros(8)}, "loss")
    8
    """
    parts = batch if type(batch) in (list, tuple) else (batch,)
    if all(
        type(part) is Tensor for part in parts
    ):  # most batches: nobody needs to know what is where
        found = {part.shape[0] for part in parts if part.ndim}
        if len(found) == 1:
            return int(found.pop())
    leaves, spec = flatten(batch)
    sizes = {
        path: leaf.shape[0]
        for path, leaf in zip(spec.paths, leaves, strict=True)
        if isinstance(leaf, Tensor) and leaf.ndim > 0
    }
    if len(set(sizes.values())) == 1:
        return next(iter(sizes.values()))
    seen = (
        ", ".join(f"batch{path} has {size}" for path, size in sizes.items())
        or "it holds no tensor with a dimension"
    )
    raise InputError(
        f"can't tell how many samples are behind {name!r}, by which its mean is weighted: {seen}",
        do=f"self.log({name!r}, value, batch_size=...).",
    )

"""What this rank logs in one epoch, and the one exchange that makes it every rank's.

Every value is kept as (Σ weight·value, Σ weight) in float64. At the end of an epoch one collective
brings together what each rank has logged, however much, and metric objects are synced together in
one or two more. A rank that had no batch takes part with an empty log.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.arguments import is_metric
from distmetrics.comm.base import Communicator
from distmetrics.comm.sites import call_site
from distmetrics.errors import ConfigurationError, Site
from distmetrics.train.accumulators import Accumulator, Accumulators, Key, Kind, RankLog, all_logs
from distmetrics.train.combine import Logged, combine
from distmetrics.train.log_options import (
    Options,
    as_number,
    batch_size_of,
    check_batch_size,
    check_options,
    moments,
)
from distmetrics.train.metric_state import (
    check_unused,
    metric_at,
    metric_values,
    metrics_in,
    path_of,
    updated,
)

Stage = Literal["train", "validate", "test"]
_STAGE_NAMES = {"train": "epoch", "validate": "validation", "test": "test"}
_LABELS = ("step_local", "prog_bar", "unlogged")
_NO_BATCH = object()


class _Plan(NamedTuple):
    """How a name is logged here: settled at its first call, and when these options change.

    Attributes:
        epoch: adds up the epoch's values of this rank, if there is to be one.
        step_key: the name of the step's value, if there is to be one.
        step_kind: how the ranks' values of the step are combined; None leaves each its own.
        is_weighted: whether the number of samples counts.
    """

    options: Options
    loader: int
    in_step: bool
    epoch: Accumulator | None
    step_key: Key | None
    step_kind: Kind | None
    is_weighted: bool


class LogBook:
    """The log of one epoch of one stage on one rank.

    Args:
        stage: "train", "validate" or "test".
        comm: who talks.
        module: which holds the metric objects.
        loaders: how many there are; with several, each has values of its own.
        strict: see :func:`~distmetrics.train.combine.check_names`.
        allow_pickle: of metric objects' states, see :func:`~distmetrics.sync_and_compute`.

    Attributes:
        step_values: the latest value of each name that is logged on each step.
        step_local: which of those are this rank's own.
        prog_bar: the names that the progress bar shows.
        unlogged: the names that loggers do not get: they have ``name_epoch`` for ``name``.
    """

    def __init__(
        self,
        stage: Stage,
        comm: Communicator,
        module: nn.Module,
        *,
        loaders: int = 1,
        strict: bool = True,
        allow_pickle: bool = False,
    ) -> None:
        self.step_values: dict[str, Tensor] = {}
        self.step_local: set[str] = set()
        self.prog_bar: set[str] = set()
        self.unlogged: set[str] = set()
        self._stage = stage
        self._comm = comm
        self._module = module
        self._has_loaders, self._strict = loaders > 1, strict
        self._allow_pickle = allow_pickle
        self._epoch = Accumulators()
        self._batches = Counter[int]()
        self._step = Accumulators()  # this step's values to be combined over the ranks
        self._step_site: Site | None = None  # the line that logged the first of these
        self._batch: Any = _NO_BATCH
        self._batch_size: int | None = None
        self._in_step, self._loader = False, -1
        self._plans: dict[str, _Plan] = {}
        self._labels: dict[str, Key] = {}
        self._paths: dict[int, str] = {}
        # An evaluation's metric objects must not hold samples from before it.
        self._used_before = {} if stage == "train" else updated(metrics_in(module))

    def begin_step(self, batch: Any, loader: int = 0) -> None:
        """Note that what is logged from now on is about ``batch``."""
        self._batch, self._batch_size, self._in_step = batch, None, True
        self._loader = loader if self._has_loaders else -1
        self._batches[self._loader] += 1

    def end_step(self) -> None:
        """Note that the step is over: what callbacks log is the epoch's, weighted by its batch."""
        self._in_step, self._loader = False, -1

    def leave_batch(self) -> None:
        """Note that no batch is under way: what is logged from now on is about the epoch."""
        self._batch = _NO_BATCH

    def log(self, name: str, value: Any, options: Options) -> None:
        """Log a number or a metric object, see :meth:`distmetrics.train.Module.log`."""
        if options.batch_size is not None and type(options.batch_size) is not int:
            # An array can't be compared with the plan's.
            options = options._replace(batch_size=check_batch_size(name, options.batch_size))
        if not isinstance(value, Tensor | float) and is_metric(value):
            self.log_metric(name, value, options)
            return
        number = as_number(f"the value of {name!r}", value)
        plan = self._plans.get(name) if isinstance(name, str) else None
        if plan is None or plan[:3] != (options, self._loader, self._in_step):
            plan = self._plans[name] = self._planned(name, options)
        if options.rank_zero_only and self._comm.rank != 0:
            return
        weight = self._weight(name, options) if plan.is_weighted else 1.0
        if plan.epoch is not None:
            plan.epoch.steps += self._in_step
            plan.epoch.add(number, weight)
        if plan.step_key is not None and plan.step_kind is None:
            self._keep_step_value(plan.step_key, number, local=self._comm.world_size > 1)
        elif plan.step_key is not None and plan.step_kind is not None:
            if not self._step and (site := call_site()) is not None:
                call = f"{site.function}, self.log({name!r}, sync_dist=True)"
                self._step_site = site._replace(function=call)
            self._step.of(plan.step_key, plan.step_kind).add(number, weight)

    def log_metric(self, name: str, metric: Any, options: Options, *, bare: bool = False) -> None:
        """Log a metric object; ``bare`` logs each of its several values by its own name."""
        check_options(name, options, is_metric=True)
        path = self._path(name, metric)
        key = Key(f"{path}.*" if bare else name, self._loader)
        self._epoch.of(key, Kind(metric=path, bare=bare))
        self._claim(key, key, options)

    def _planned(self, name: str, options: Options) -> _Plan:
        """Return what the options mean here."""
        check_options(name, options)
        training = self._stage == "train"
        on_step, on_epoch = moments(name, options, in_step=self._in_step, training=training)
        key = Key(name, self._loader)
        step_key, epoch = key if on_step else None, None
        self._claim(key, key, options)
        if on_step and on_epoch:
            step_key = key.of("step")
            self._claim(key, step_key, options)
            self._claim(key, key.of("epoch"), options._replace(prog_bar=False))
            self.unlogged.add(key.label)
        if on_epoch and not (options.rank_zero_only and self._comm.rank != 0):
            kind = Kind(options.reduce_fx, options.scope, forked=on_step)
            epoch = self._epoch.of(key, kind)
        is_synced = on_step and training and options.sync_dist
        return _Plan(
            options,
            self._loader,
            self._in_step,
            epoch,
            step_key,
            Kind(options.reduce_fx) if is_synced else None,
            is_weighted=options.reduce_fx == "mean" and (epoch is not None or bool(is_synced)),
        )

    def _claim(self, key: Key, known_as: Key, options: Options) -> None:
        """Refuse a name under which another value is known already, and note where it shows."""
        label = known_as.label
        other = self._labels.setdefault(label, key)
        if other != key:
            raise ConfigurationError(
                f"{label!r} is what {key.label!r} and {other.label!r} would both be known as: "
                "a name logged on_step and on_epoch has name_step and name_epoch too",
                do="log one of them under another name.",
            )
        if options.prog_bar:
            self.prog_bar.add(label)
        if not options.logger:
            self.unlogged.add(label)

    def _weight(self, name: str, options: Options) -> float:
        """Return the number of samples behind a value; outside a step each rank counts once."""
        if options.batch_size is not None:
            return float(options.batch_size)
        if self._batch is _NO_BATCH:
            return 1.0
        if self._batch_size is None:
            self._batch_size = batch_size_of(self._batch, name)
        return float(self._batch_size)

    def _path(self, name: str, metric: Any) -> str:
        """Return the attribute that holds a metric, where a rank without batches finds it too."""
        path = self._paths.get(id(metric))
        if path is not None:
            return path
        path = self._paths[id(metric)] = path_of(self._module, metric, name)
        check_unused(path, self._used_before, f"this {_STAGE_NAMES[self._stage]}", name)
        return path

    def _keep_step_value(self, key: Key, value: Tensor | float, *, local: bool) -> None:
        device = value.device if isinstance(value, Tensor) else "cpu"
        number = torch.as_tensor(value, dtype=torch.float64, device=device)
        self.step_values[key.label] = number.clone()
        if local:
            self.step_local.add(key.label)

    def sync_step(self, *, everyone: bool) -> None:
        """Combine the step's values that were logged with ``sync_dist=True``.

        A rank without a batch can't know whether the others log: unless ``everyone`` has one in
        this step, all ranks exchange.
        """
        if everyone and not self._step:
            return
        site, others = self._step_site, len(self._step) - 1
        if site is not None and others > 0:
            site = site._replace(function=f"{site.function} and {others} more")
        logged = self._combined(self._step, {}, f"{self._stage} step", site)
        for key, value in logged.values.items():
            self._keep_step_value(key, value, local=False)
        self._step, self._step_site = Accumulators(), None

    def close(self) -> Logged:
        """Return what all ranks logged in the epoch; every rank must call it.

        Metric objects are computed over all ranks in one sync, and reset.

        Raises:
            MismatchError: ranks log a name in different ways, or only some do (on every rank).
            ConfigurationError: a metric object is logged for two loaders (on every rank).
        """
        name = f"{self._stage} epoch"
        logged = self._combined(self._epoch, self._batches, name)
        kinds = {key: kind for key, kind in logged.kinds.items() if kind.metric}
        if kinds:
            values = metric_values(
                self._module, kinds, self._comm, name, allow_pickle=self._allow_pickle
            )
            logged.values.update(values)
        return logged

    def _combined(
        self,
        mine: Accumulators,
        batches: dict[int, int],
        name: str,
        site: Site | None = None,
    ) -> Logged:
        """Exchange this rank's log; ``site`` is the line that asked for it, if that is not ours."""
        sent = RankLog(mine.settled(), batches)
        ranks = all_logs(sent, self._comm, name, call_site(), site)
        return combine(ranks, self._comm.rank, strict=self._strict)

    def state(self) -> dict[str, Any]:
        """Return what this rank has logged so far, of plain types; see :meth:`load`."""
        return {
            "epoch": RankLog(self._epoch.settled(), {}).as_data(),
            "steps": {name: value.cpu() for name, value in self.step_values.items()},
            "labels": [sorted(getattr(self, name)) for name in _LABELS],
        }

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states of this epoch: this rank's own, or those of several ranks together."""
        for state in states:
            for key, part in RankLog.read(state["epoch"]).values.items():
                self._epoch.of(key, part.kind).merge(part.total, part.weight)
            self.step_values.update(state["steps"])
            for name, labels in zip(_LABELS, state["labels"], strict=True):
                getattr(self, name).update(labels)

    def discard(self) -> None:
        """Forget what was logged and reset the metric objects; nothing is sent."""
        for path in {each.kind.metric for each in self._epoch.values()} - {""}:
            metric_at(self._module, path).reset()

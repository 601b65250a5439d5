"""What this rank logs in one epoch, and the one exchange that makes it every rank's.

Values are added up on this rank, as in :class:`distmetrics.Log`. At the end of an epoch one
collective brings together the sums of all ranks, however many, and metric objects are synced
together in one or two more. A rank that had no batch takes part with an empty log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from distmetrics.arguments import is_metric
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, Site
from distmetrics.log.names import Names
from distmetrics.run.combine import Logged, combined
from distmetrics.run.entries import Entries, Entry, Key, Kind
from distmetrics.run.log_options import (
    Options,
    as_number,
    batch_size_of,
    check_batch_size,
    check_options,
    moments,
)
from distmetrics.run.metric_state import (
    check_unused,
    metric_at,
    metric_values,
    metrics_in,
    path_of,
    updated,
)
from distmetrics.run.one_sided import check_names

Stage = Literal["train", "validate", "test"]
_STAGE_NAMES = {"train": "epoch", "validate": "validation", "test": "test"}
_LABELS = ("step_local", "prog_bar", "unlogged")
_OUTSIDE = (False, -1)  # not in a step, no loader


@dataclass(slots=True)
class _Plan:
    """How a name is logged here: settled at its first call, and when these options change.

    Attributes:
        options: as they were given; ``place``: whether in a step, and the loader.
        epoch: where the epoch's values go, if there is to be one.
        step: the name of the step's value, if there is to be one; else "".
        synced: where the step's values go that are combined over ranks; None leaves each its own.
        is_weighted: whether the number of samples counts.
    """

    options: Options
    place: tuple[bool, int]
    epoch: Entry | None = None
    step: str = ""
    synced: Entry | None = None
    is_weighted: bool = False


class LogBook:
    """The log of one epoch of one stage on one rank.

    Args:
        stage: "train", "validate" or "test".
        comm: who talks.
        module: which holds the metric objects.
        loaders: how many there are; with several, each has values of its own.
        strict: see :func:`~distmetrics.run.one_sided.check_names`.
        allow_pickle: of metric objects' states, see :func:`~distmetrics.sync_and_compute`.

    Attributes:
        step_values: the latest value of each name that is logged on each step: a number, or a
            tensor on an accelerator.
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
        self.step_values: dict[str, Tensor | float] = {}
        self.step_local: set[str] = set()
        self.prog_bar: set[str] = set()
        self.unlogged: set[str] = set()
        self._stage = stage
        self._comm = comm
        self._module = module
        self._has_loaders, self._strict = loaders > 1, strict
        self._allow_pickle = allow_pickle
        self._known: dict[str, Names] = {}  # that ranks have told each other of
        self._epoch = Entries()
        self._step = Entries()  # what is combined over the ranks in each step
        self._synced: dict[str, Site | None] = {}  # the names of these in this step, and the lines
        self._batch: Any = None
        self._samples: float | None = 1.0  # in the batch; None until somebody asks
        self._place = _OUTSIDE
        self._plans: dict[str, _Plan] = {}
        self._labels: dict[str, Key] = {}
        self._paths: dict[int, str] = {}
        # An evaluation's metric objects must not hold samples from before it.
        self._used_before = {} if stage == "train" else updated(metrics_in(module))

    def begin_step(self, batch: Any, loader: int = 0) -> None:
        """Note that what is logged from now on is about ``batch``."""
        self._batch, self._samples = batch, None
        self._place = True, loader if self._has_loaders else -1
        self._epoch.batches[self._place[1]] += 1

    def end_step(self) -> None:
        """Note that the step is over: what callbacks log is the epoch's, weighted by its batch."""
        self._place = _OUTSIDE

    def leave_batch(self) -> None:
        """Note that no batch is under way: what is logged from now on is about the epoch."""
        self._batch, self._samples = None, 1.0

    def log(self, name: str, value: Any, options: Options) -> None:
        """Log a number or a metric object, see :meth:`distmetrics.train.Module.log`."""
        if options.batch_size is not None and type(options.batch_size) is not int:
            # An array can't be compared with the plan's.
            options = options._replace(batch_size=check_batch_size(name, options.batch_size))
        if type(value) is not float and not isinstance(value, Tensor) and is_metric(value):
            self.log_metric(name, value, options)
            return
        number = as_number(name, value)
        plan = self._plans.get(name) if isinstance(name, str) else None
        if plan is None or plan.options != options or plan.place != self._place:
            plan = self._plans[name] = self._planned(name, options)
        weight = self._weight(name, options) if plan.is_weighted else 1.0
        if plan.epoch is not None:
            plan.epoch.steps += plan.place[0]
            self._epoch.window.put((plan.epoch.slot,), number, weight)
        if plan.synced is not None:
            self._synced[name] = plan.synced.slot.site
            self._step.window.put((plan.synced.slot,), number, weight)
        elif plan.step:
            self.step_values[plan.step] = number

    def log_metric(self, name: str, metric: Any, options: Options, *, bare: bool = False) -> None:
        """Log a metric object; ``bare`` logs each of its several values by its own name."""
        check_options(name, options, is_metric=True)
        path = self._path(name, metric)
        key = Key(f"{path}.*" if bare else name, self._place[1])
        entry = self._epoch.of(key, Kind(metric=path, bare=bare))
        self._epoch.window.put((entry.slot,), 0.0)
        self._claim(key, key, options)

    def _planned(self, name: str, options: Options) -> _Plan:
        """Return what the options mean here."""
        check_options(name, options)
        training = self._stage == "train"
        in_step, loader = self._place
        on_step, on_epoch = moments(name, options, in_step=in_step, training=training)
        key = step_key = Key(name, loader)
        self._claim(key, key, options)
        if on_step and on_epoch:
            step_key = key.of("step")
            self._claim(key, step_key, options)
            self._claim(key, key.of("epoch"), options._replace(prog_bar=False))
            self.unlogged.add(key.label)
        plan = _Plan(options, self._place)
        if options.rank_zero_only and self._comm.rank != 0:
            return plan
        if on_epoch:
            kind = Kind(options.reduce_fx, options.scope, forked=on_step)
            plan.epoch = self._epoch.of(key, kind)
        if on_step and training and options.sync_dist:
            plan.synced = self._step.of(step_key, Kind(options.reduce_fx))
        elif on_step:
            plan.step = step_key.label
            if self._comm.world_size > 1:
                self.step_local.add(plan.step)
        has_sum = plan.epoch is not None or plan.synced is not None
        plan.is_weighted = has_sum and options.reduce_fx == "mean"
        return plan

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
        if self._samples is None:
            self._samples = float(batch_size_of(self._batch, name))
        return self._samples

    def _path(self, name: str, metric: Any) -> str:
        """Return the attribute that holds a metric, where a rank without batches finds it too."""
        path = self._paths.get(id(metric))
        if path is not None:
            return path
        path = self._paths[id(metric)] = path_of(self._module, metric, name)
        check_unused(path, self._used_before, f"this {_STAGE_NAMES[self._stage]}", name)
        return path

    def sync_step(self, *, everyone: bool) -> None:
        """Combine the step's values that were logged with ``sync_dist=True``.

        A rank without a batch can't know whether the others log: unless ``everyone`` has one in
        this step, all ranks exchange.
        """
        if everyone and not self._synced:
            return
        site = next(iter(self._synced.values()), None)
        if site is not None:
            more = f" and {len(self._synced) - 1} more" if len(self._synced) > 1 else ""
            call = f"self.log({next(iter(self._synced))!r}, sync_dist=True)"
            site = site._replace(function=f"{site.function}, {call}{more}")
        name = f"{self._stage} step"
        logged = combined(self._step, self._known, name, site, comm=self._comm)
        self.step_values.update({key.label: value for key, value in logged.values.items()})
        self._step.window.clear()
        self._synced = {}

    def close(self) -> Logged:
        """Return what all ranks logged in the epoch; every rank must call it.

        Metric objects are computed over all ranks in one sync, and reset.

        Raises:
            MismatchError: ranks log a name in different ways, or only some do (on every rank).
            ConfigurationError: a metric object is logged for two loaders (on every rank).
        """
        name = f"{self._stage} epoch"
        logged = combined(self._epoch, self._known, name, None, comm=self._comm)
        check_names(logged, self._epoch, self._comm, strict=self._strict)
        kinds = {key: kind for key, kind in logged.kinds.items() if kind.metric}
        if kinds:
            logged.values.update(
                metric_values(
                    self._module, kinds, self._comm, name, allow_pickle=self._allow_pickle
                )
            )
        return logged

    def state(self) -> dict[str, Any]:
        """Return what this rank has logged so far, of plain types; see :meth:`load`."""
        return {
            "epoch": self._epoch.window.state(),
            "steps": {name: float(value) for name, value in self.step_values.items()},
            "labels": [sorted(getattr(self, name)) for name in _LABELS],
        }

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states of this epoch: this rank's own, or those of several ranks together."""
        for state in states:
            self._epoch.load(state["epoch"])
            self.step_values.update(state["steps"])
            for name, labels in zip(_LABELS, state["labels"], strict=True):
                getattr(self, name).update(labels)

    def discard(self) -> None:
        """Forget what was logged and reset the metric objects; nothing is sent."""
        for path in {each.kind.metric for each in self._epoch.values()} - {""}:
            metric_at(self._module, path).reset()

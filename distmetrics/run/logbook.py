"""What this rank logs in one epoch, and the one exchange that makes it every rank's.

Values are added up on this rank, as in :class:`distmetrics.Log`. At the end of an epoch one
collective brings together the sums of all ranks, however many, and metric objects are synced
together in one or two more. A rank that had no batch takes part with an empty log.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from torch import Tensor, nn

from distmetrics.arguments import is_metric
from distmetrics.collectives.header import Header
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.log.kinds import Kind
from distmetrics.log.merge import lines, merged, own_value, refusal
from distmetrics.log.names import Names, join
from distmetrics.log.window import Slot, Window, WindowSnapshot, weight_of
from distmetrics.message import reading
from distmetrics.metrics.adapters import targets
from distmetrics.metrics.sync import sync_and_compute
from distmetrics.run.metric_states import attributes_in, metrics_in
from distmetrics.run.values import as_number, check_name
from distmetrics.tree import flatten

Stage = Literal["train", "validate", "test"]
ReduceFx = Literal["mean", "sum", "max", "min"]
Scope = Literal["all ranks", "this rank", "rank 0"]

_REDUCTIONS = get_args(ReduceFx)
_OUTSIDE = (False, "")  # not in a step, no loader
_LABELS = ("step_local", "prog_bar", "unlogged")  # attributes that a state has


class LogOptions(NamedTuple):
    """The options of ``self.log``."""

    on_step: bool | None = None
    on_epoch: bool | None = None
    sync_dist: bool | None = None
    rank_zero_only: bool = False
    batch_size: float | None = None
    reduce_fx: Any = "mean"
    prog_bar: bool = False
    logger: bool = True


class LoggedKind(Kind, frozen=True):
    """How a name is logged: what all ranks that log it must agree on.

    Attributes:
        scope: the ranks whose values count.
        loader: the suffix of the loader whose samples count.
        also: the other name of the value, ``name_epoch``, where each step has a value too.
        metric: the attribute of the module that holds the metric object; empty for a value.
        prefix: of the names of a metric object's values, where there are several.
    """

    op: ReduceFx
    size: Literal[0] = 0
    scope: Scope = "all ranks"
    loader: str = ""
    also: str = ""
    metric: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        return f"value of self.{self.metric}" if self.metric else f"{self.op} over {self.scope}"


class LoggedNames(Names, frozen=True):
    """What ranks tell each other of the names that they log.

    Attributes:
        kinds: how each is logged.
        whole: the names of all ranks' values that this rank has logged in each of its batches.
        batches: how many it had, by the loader's suffix: 1, or 2 for any more.
    """

    kinds: dict[str, LoggedKind]  # type: ignore[assignment]
    whole: tuple[str, ...] = ()
    batches: dict[str, int] = msgspec.field(default_factory=dict)


class Logged(NamedTuple):
    """What all ranks' logs amount to.

    ``values`` by name, of which the ``local`` ones are this rank's own, and ``aliases`` those with
    another name; ``batches``: the suffixes of the loaders that gave some rank a batch.
    """

    values: dict[str, float]
    local: set[str]
    aliases: set[str]
    batches: set[str]


@dataclass(slots=True)
class _Plan:
    """How a name is logged here: settled at its first call, and when these options change."""

    options: LogOptions
    place: tuple[bool, str]  # whether in a step, and the loader's suffix
    label: str
    epoch: tuple[Slot, ...] = ()  # where the epoch's values go
    synced: tuple[Slot, ...] = ()  # where the step's values go that are combined over ranks
    step: str = ""  # else the name of the step's value, if there is one
    is_weighted: bool = False  # whether the number of samples counts


@dataclass(eq=False)
class LogBook:
    """The log of one epoch of one stage on one rank.

    Args:
        stage: "train", "validate" or "test".
        comm: who talks.
        module: which holds the metric objects.
        loaders: how many there are; with several, each has values of its own.
        strict: refuse a name that some ranks log in every batch and others in none; else warn.
        allow_pickle: of metric objects' states, see :func:`~distmetrics.sync_and_compute`.

    Attributes:
        step_values: the latest value of each name that is logged on each step: a number, or a
            tensor on an accelerator.
        step_local: which of those are this rank's own.
        prog_bar: the names that the progress bar shows.
        unlogged: the names that loggers do not get: they have ``name_epoch`` for ``name``.
    """

    stage: Stage
    comm: Communicator
    module: nn.Module
    loaders: int = 1
    strict: bool = True
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        self.step_values = dict[str, Tensor | float]()
        self.step_local, self.prog_bar, self.unlogged = set[str](), set[str](), set[str]()
        self._known = dict[str, Names]()  # that ranks have told each other of
        self._epoch = Window(LoggedNames)
        self._step = Window(LoggedNames)  # what is combined over the ranks in each step
        self._synced: Slot | None = None  # the first of these in this step
        self._batches = Counter[str]()  # by the loader's suffix
        self._steps = Counter[str]()  # in which a name of the epoch was logged
        self._batch: Any = None
        self._samples: float | None = 1.0  # in the batch; None until somebody asks
        self._place = _OUTSIDE
        self._plans = dict[str, _Plan]()
        self._claims = dict[str, str]()  # for each name of a value, the one that was logged
        self._paths = dict[int, str]()  # of the module's attributes
        # An evaluation's metric objects must not hold samples from before it. One that is made of
        # others, and holds none itself, may go on counting over a reset.
        held = targets({} if self.stage == "train" else metrics_in(self.module))
        used = [each for each in held if each.states and each.storage.get(each.adapter.counter)]
        self._used_before = {id(each.metric) for each in used}

    def begin_step(self, batch: Any, loader: int = 0) -> None:
        """Note that what is logged from now on is about ``batch``."""
        suffix = loader_suffix(loader, self.loaders)
        self._batch, self._samples, self._place = batch, None, (True, suffix)
        self._batches[suffix] += 1

    def end_step(self) -> None:
        """Note that the step is over: what callbacks log is the epoch's, weighted by its batch."""
        self._place = _OUTSIDE

    def leave_batch(self) -> None:
        """Note that no batch is under way: what is logged from now on is about the epoch."""
        self._batch, self._samples = None, 1.0

    def log(self, name: str, value: Any, options: LogOptions) -> None:
        """Log a number or a metric object, see :meth:`distmetrics.train.Module.log`."""
        if type(value) is not float and not isinstance(value, Tensor) and is_metric(value):
            self.log_metric(name, value, options)
            return
        number = as_number(name, value)
        size: Any = options.batch_size
        if type(size) is int and size >= 0:
            size = float(size)
        elif size is not None:
            size = weight_of(name, as_number("batch_size", size))
            options = options._replace(batch_size=None)  # an array can't be compared
        plan = self._plans.get(name)
        if plan is None or plan.options != options or plan.place != self._place:
            plan = self._plans[name] = self._planned(name, options)
        weight: Any = 1.0
        if plan.is_weighted:
            if size is None and self._samples is None:
                self._samples = float(batch_size_of(self._batch, name))
            weight = self._samples if size is None else size
        if plan.epoch:
            self._steps[plan.label] += plan.place[0]
            self._epoch.put(plan.epoch, number, weight)
        if plan.synced:
            self._synced = self._synced or plan.synced[0]
            self._step.put(plan.synced, number, weight)
        elif plan.step:
            self.step_values[plan.step] = number

    def log_metric(
        self, name: str, metric: Any, options: LogOptions, *, bare: bool = False
    ) -> None:
        """Log a metric object; ``bare`` logs each of its several values by its own name."""
        if id(metric) not in self._paths:
            self._paths = {id(value): path for path, value in attributes_in(self.module)}
        path = self._paths.get(id(metric))  # where a rank without batches finds it too
        if path is None:
            raise ConfigurationError(
                f"the metric object logged as {name!r} is no attribute of the module: a rank "
                "without batches could not find it",
                do="assign it in __init__: self.some_name = metric; several go into an "
                "nn.ModuleDict.",
            )
        if self._used_before and self._used_before & {id(each.metric) for each in targets(metric)}:
            raise ConfigurationError(
                f"self.{path} holds samples from before, which would count in {name!r}",
                do="keep one metric object for training and one for evaluation, or call its "
                "reset() before.",
            )
        kind = LoggedKind("mean", metric=path, prefix="" if bare else f"{name}/")
        plan = self._planned(f"{path}.*" if bare else name, options, kind)
        self._epoch.put(plan.epoch, 0.0)

    def _planned(self, name: Any, options: LogOptions, metric: LoggedKind | None = None) -> _Plan:
        """Return what the options mean here; refuse a name and options that make no sense."""
        check_name(name)
        in_step, suffix = self._place
        by_step = in_step and self.stage == "train" and metric is None
        on_step = by_step if options.on_step is None else options.on_step
        on_epoch = not by_step if options.on_epoch is None else options.on_epoch
        scope: Scope = "all ranks"
        if options.rank_zero_only:
            scope = "rank 0"
        elif options.sync_dist is False:
            scope = "this rank"
        is_once = not on_step and on_epoch and scope == "all ranks"
        faults = {
            f"reduce_fx must be one of {', '.join(_REDUCTIONS)}, got {options.reduce_fx!r}; any "
            "other statistic belongs in a metric object": options.reduce_fx not in _REDUCTIONS,
            "sync_dist=True is all ranks' value, rank_zero_only=True rank 0's own": (
                options.sync_dist and options.rank_zero_only
            ),
            "a metric object has its value over all ranks, at the end of the epoch: for one of "
            "each step, log what metric(...) returns": metric is not None and not is_once,
            "it is logged on_step, and no step is under way": on_step and not in_step,
            "it is logged neither on_step nor on_epoch": not (on_step or on_epoch),
        }
        for what, is_so in faults.items():
            if is_so:
                raise ConfigurationError(f"{name!r}: {what}")
        label = step = name + suffix
        also = ""
        if on_step and on_epoch:
            step, also = f"{name}_step{suffix}", f"{name}_epoch{suffix}"
        self._claim(label, step, also, options)
        plan = _Plan(options, self._place, label)
        if options.rank_zero_only and self.comm.rank != 0:
            return plan
        kind = metric or LoggedKind(options.reduce_fx)
        if on_epoch:
            kind = kind.but(scope=scope, loader=suffix, also=also)
            plan.epoch = (self._epoch.slot(label, kind),)
        if on_step and self.stage == "train" and options.sync_dist:
            plan.synced = (self._step.slot(step, kind),)
        elif on_step:
            plan.step = step
            if self.comm.world_size > 1:
                self.step_local.add(step)
        plan.is_weighted = options.reduce_fx == "mean" and bool(plan.epoch or plan.synced)
        return plan

    def _claim(self, label: str, step: str, also: str, options: LogOptions) -> None:
        """Refuse labels under which another value is known already, and note where they show."""
        labels = [each for each in (label, step, also) if each]
        for each in labels:
            if self._claims.setdefault(each, label) != label:
                raise ConfigurationError(
                    f"{each!r} is what {label!r} and {self._claims[each]!r} would both be known "
                    "as: a name logged on_step and on_epoch has name_step and name_epoch too",
                    do="log one of them under another name.",
                )
        if options.prog_bar:
            self.prog_bar |= {label, step}
        if not options.logger:
            self.unlogged.update(labels)
        elif also:
            self.unlogged.add(label)

    def sync_step(self, *, everyone: bool) -> None:
        """Combine the step's values that were logged with ``sync_dist=True``.

        A rank without a batch can't know whether the others log: unless ``everyone`` has one in
        this step, all ranks exchange.
        """
        if everyone and not self._synced:
            return
        mine = self._step.snapshot(self.comm.device)
        slot, self._synced = self._synced, None
        line = slot.site if slot else None
        if slot and line:
            said = f"self.log({slot.name!r}, sync_dist=True)"
            line = line._replace(function=f"{line.function}, {said}")
        call = Header("self.log", f"{self.stage} step", site=mine.site, reported_site=line)
        row, _ = merged(mine, self._known, call, comm=self.comm)
        self.step_values.update(row)
        self._step.clear()

    def close(self) -> Logged:
        """Return what all ranks logged in the epoch; every rank must call it.

        Metric objects are computed over all ranks in one sync, and reset.

        Raises:
            MismatchError: ranks log a name in different ways, or only some do (on every rank).
            ConfigurationError: a metric object is logged for two loaders (on every rank).
        """
        mine = self._epoch.snapshot(self.comm.device)
        names: Any = mine.totals.names
        whole = [
            label
            for label, kind in names.kinds.items()
            if kind.scope == "all ranks" and 0 < self._batches[kind.loader] <= self._steps[label]
        ]
        batches = {suffix: min(count, 2) for suffix, count in self._batches.items()}
        names = names.but(whole=tuple(whole), batches=batches)
        mine = mine._replace(totals=mine.totals._replace(names=names))
        call = Header("self.log", f"{self.stage} epoch", site=mine.site)
        row, told = merged(mine, self._known, call, comm=self.comm)
        distinct: Any = tuple(dict.fromkeys(told))
        kinds: Any = join(distinct)[0].kinds
        self._check_names(mine, kinds, distinct)
        logged = Logged({}, set(), set(), set().union(*[each.batches for each in distinct]))
        for label, value in row.items():
            kind = kinds[label]
            is_own = kind.scope == "this rank" and self.comm.world_size > 1
            value = own_value(mine, label) if is_own else value
            if value is None or kind.metric:
                continue
            labels = [label, kind.also] if kind.also else [label]
            logged.values.update(dict.fromkeys(labels, value))
            logged.local.update(labels if is_own else ())
            logged.aliases.update(labels[1:])
        metrics = {label: kind for label, kind in kinds.items() if kind.metric}
        if metrics:
            logged.values.update(self._metric_values(metrics))
        return logged

    def _check_names(
        self, mine: WindowSnapshot, kinds: Mapping[str, LoggedKind], told: Sequence[LoggedNames]
    ) -> None:
        """Refuse, or warn of, names that some ranks log in every batch and others in none.

        Their values are of the former's samples alone. That is right where the condition is on the
        data, as it would be in one process, and wrong where it is on the rank. With a single batch
        on a rank, the one looks like the other.
        """
        if len(told) == 1:
            return
        doubts, sure = [], []
        for label, kind in kinds.items():
            busy = [each for each in told if kind.loader in each.batches]
            always = [each for each in busy if label in each.whole]
            never = [each for each in busy if label not in each.kinds]
            if always and never:
                doubts.append(label)
                if self.strict and min(each.batches[kind.loader] for each in always + never) > 1:
                    sure.append(label)
        if not doubts:
            return
        found = sure or doubts
        error = refusal(
            self.comm,
            f"only some ranks log {', '.join(map(repr, found))}, in every batch: the samples of "
            "the others are not in the value",
            lines(self.comm, mine, found[0], "logged"),
            likely="a condition on the rank around self.log, or the rank in the name.",
            do="log on every rank; with rank_zero_only=True what is rank 0's alone. If the "
            "condition is on the data, Trainer(require_same_names=False) only warns.",
            note="",
        )
        if sure:
            raise error
        if self.comm.rank == 0:
            warnings.warn(str(error), stacklevel=2)

    def _metric_values(self, kinds: Mapping[str, LoggedKind]) -> dict[str, float]:
        """Return the numbers of metric objects that were logged, over all ranks; reset these."""
        loaders = {kind.metric: kind.loader for kind in kinds.values()}
        for kind in kinds.values():
            if kind.loader != loaders[kind.metric]:
                raise ConfigurationError(
                    f"the metric self.{kind.metric} is logged for several loaders, whose samples "
                    "it would mix",
                    do="keep one metric object a loader, in an nn.ModuleList.",
                )
        with reading("names of metric objects"):
            held = dict(attributes_in(self.module))
            metrics = {path: held[path] for path in sorted(loaders)}
        epoch = f"{self.stage} epoch"
        computed = sync_and_compute(
            metrics, allow_pickle=self.allow_pickle, comm=self.comm, name=epoch
        )
        for metric in metrics.values():
            metric.reset()
        numbers = {}
        for label, kind in kinds.items():
            values = {label: computed[kind.metric]}
            if isinstance(values[label], Mapping):
                own = values[label].items()
                values = {f"{kind.prefix}{name}{kind.loader}": value for name, value in own}
            for shown in (self.prog_bar, self.unlogged):
                shown.update(values if label in shown else ())
            for each, value in values.items():
                numbers[each] = float(as_number(f"self.{kind.metric}", value))
        return numbers

    def state(self) -> dict[str, Any]:
        """Return what this rank has logged so far, of plain types; see :meth:`load`."""
        steps = {name: float(value) for name, value in self.step_values.items()}
        labels = {name: sorted(getattr(self, name)) for name in _LABELS}
        return {**self._epoch.state(), "steps": steps, **labels}

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states of this epoch: this rank's own, or those of several ranks together."""
        for state in states:
            self._epoch.load(state)
            self.step_values.update(state["steps"])
            for name in _LABELS:
                getattr(self, name).update(state[name])


def loader_suffix(loader: int, loaders: int) -> str:
    """Return what the names of a loader's values end in; nothing where there is one loader."""
    return f"/dataloader_idx_{loader}" if loaders > 1 else ""


def batch_size_of(batch: Any, name: str) -> int:
    """Return the number of samples in a batch: the first dimension that all its tensors share.

    Raises:
        InputError: there is no tensor, or their first dimensions differ.

    >>> batch_size_of({"image": torch.zeros(8, 3, 32, 32), "label": torch.zeros(8)}, "loss")
    8
    """
    leaves, _ = flatten(batch)
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, Tensor)]
    sizes = {shape[0] for shape in shapes if shape}
    if len(sizes) != 1:
        raise InputError(
            f"can't tell how many samples are behind {name!r}, by which its mean is weighted: the "
            f"first dimensions of the batch's tensors are {sorted(sizes)}",
            do=f"self.log({name!r}, value, batch_size=...).",
        )
    return sizes.pop()

"""The runner: a user's own loop on one device or many."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import (
    FLAG,
    POSITIVE_NUMBER,
    SEED,
    Takes,
    check,
    describe,
    is_number,
    refuse_unknown,
)
from distmetrics.data.sharding import has_order
from distmetrics.errors import ConfigurationError, InputError, InputTypeError
from distmetrics.launch.environment import ClusterEnvironment
from distmetrics.launch.joining import losses_named
from distmetrics.log.log import Log
from distmetrics.run.seed import seed_workers, set_all
from distmetrics.run.world import RunnerWorld
from distmetrics.run.wrapped import RunnerLoader, RunnerModule, RunnerOptimizer, shuffles
from distmetrics.strategies.base import Layout, Strategy
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.layouts import in_layout
from distmetrics.strategies.registry import resolve
from distmetrics.strategies.tensors import check_steps_some, to_host

T = TypeVar("T")

_LIMIT = POSITIVE_NUMBER.or_none()
_TAKES = {
    "move_to_device": FLAG,
    "train": FLAG.or_none("None to tell by the sampler"),
    "replace_sampler": FLAG,
    "enabled": FLAG,
    "max_norm": _LIMIT,
    "clip_value": _LIMIT,
    "norm_type": Takes(lambda value: value == math.inf or is_number(value), "a number"),
}

_is_launched: ContextVar[bool] = ContextVar("distmetrics_is_launched", default=False)


class Runner(RunnerWorld):
    """Runs a training loop of your own on one device or many.

    Subclass it and put the loop into ``run``, or pass a function to :meth:`launch`. Either is
    called on every rank. The loop uses what :meth:`setup` and :meth:`setup_dataloaders` return, and
    calls :meth:`backward` instead of ``loss.backward()``.

    Args:
        strategy: how the model is split over devices: a name such as "ddp", a
            :class:`~distmetrics.strategies.base.Strategy`, or "auto".
        devices: number of devices on this machine, a list of their numbers, or -1 for all; "auto"
            is the launcher's number of processes, else every GPU, else 1.
        accelerator: "cpu", "gpu", "tpu" or "auto".
        num_nodes: number of machines.
        precision: 64, 32, 16, "bf16" and so on; None and 32 convert nothing.
        plugins: your own :class:`~distmetrics.launch.environment.ClusterEnvironment`.
        gpus: short for ``devices`` with ``accelerator="gpu"``.
        tpu_cores: short for ``devices`` with ``accelerator="tpu"``.
        seed: of all random generators, the same on every rank, and of the order of the training
            samples.
        layout: what ranks hold along the axes of a mesh, where some hold the same samples; data is
            dealt out to its shards, and values go over it. Sizes, ``{"dp": 2, "tp": 2}``; roles of
            the strategy's mesh; or a function that returns a :class:`~distmetrics.layout`.

    Attributes:
        strategy: how the model is split over devices.
        seed: as it was passed.

    Raises:
        ConfigurationError: flags contradict each other, or ask for what this machine lacks.

    >>> import torch
    >>> class Fit(Runner):
    ...     def run(self, steps):
    ...         net = torch.nn.Linear(1, 1)
    ...         model, optimizer = self.setup(net, torch.optim.SGD(net.parameters(), lr=0.2))
    ...         for _ in range(steps):
    ...             optimizer.zero_grad()
    ...             loss = ((model(torch.ones(4, 1)) - 2) ** 2).mean()
    ...             self.backward(loss)
    ...             optimizer.step()
    ...         return round(loss.item(), 3)
    >>> Fit(strategy="single", seed=0).run(steps=20)
    0.0
    """

    def __init__(
        self,
        *,
        strategy: str | Strategy | type[Strategy] = "auto",
        devices: Devices = "auto",
        accelerator: str = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        plugins: ClusterEnvironment | Sequence[ClusterEnvironment] = (),
        gpus: Devices = None,
        tpu_cores: Devices = None,
        seed: int | None = None,
        layout: Layout = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(Runner, unknown, {})
        check("Runner", locals(), {"seed": SEED.or_none()})
        self.strategy = resolve(
            strategy,
            devices=devices,
            accelerator=accelerator,
            num_nodes=num_nodes,
            precision=precision,
            plugins=plugins,
            gpus=gpus,
            tpu_cores=tpu_cores,
            layout=layout,
        )
        self.seed = seed
        self._forget()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "run" in vars(cls):
            cls.run = _launching(cls.run)  # type: ignore[method-assign]

    def _forget(self) -> None:
        """Begin or end a launch on this rank: nothing is set up."""
        self._launched = False
        self._data_seed = 0
        self._seed_workers = False
        self._models: list[RunnerModule] = []
        self._set_up: list[Any] = []  # models and optimizers of the user's
        self._open_loaders: list[RunnerLoader] = []
        self._log: Log | None = None

    def __getstate__(self) -> dict[str, Any]:
        blank: Any = SimpleNamespace()
        Runner._forget(blank)  # what is set up in a launch is this process's
        state: dict[str, Any] = vars(self) | vars(blank)
        return state

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Override it with the loop; calling it launches the loop on every rank.

        Returns:
            what the loop returns on this rank; rank 0's result if the call starts the ranks.

        Raises:
            ConfigurationError: it is not overridden, or a launch is under way.
            Exception: the error of the rank that failed first.
        """
        raise ConfigurationError(
            f"{type(self).__name__} has no run",
            do="override run(self, ...), or call launch(fn, ...).",
        )

    def launch(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(runner, *args, **kwargs)`` on every rank; result and errors as of :meth:`run`.

        Raises:
            InputTypeError: ``fn`` does not take these arguments.

        >>> Runner(strategy="single").launch(lambda runner, x: runner.world_size * x, 3)
        3
        """
        _check_function(fn, args, kwargs)
        return self._launch(fn, args, kwargs)  # type: ignore[no-any-return]

    def _launch(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if _is_launched.get():
            raise ConfigurationError(
                "a launch inside a launch: this already runs on every rank",
                do="call the function itself, with this runner as its argument.",
            )
        return self.strategy.launch(_run_on_rank, self, fn, args, kwargs)

    @contextmanager
    def on_rank(self, *, owners: bool = True) -> Iterator[None]:
        """Be in a launch on this rank inside the block; the trainer uses it.

        Args:
            owners: whether a layout may have ranks without values.
        """
        self._forget()
        self._launched = True
        try:
            if self.seed is not None:
                self.seed_everything(self.seed)
            with in_layout(self.strategy, owners=owners):
                yield
            self.strategy.release()
        finally:
            self._forget()

    def seed_everything(self, seed: int, workers: bool = True) -> int:
        """Seed Python, NumPy and torch, the same on every rank, and the order of training samples.

        NumPy is seeded if it is imported.

        Args:
            seed: from 0 to 2³² - 1.
            workers: let workers of loaders that are set up later draw different numbers on each
                rank.

        Returns:
            the seed.

        Raises:
            ConfigurationError: the seed is out of range.
        """
        check("seed_everything", locals(), {"seed": SEED, "workers": FLAG})
        self.seed_data(seed, workers=workers)
        set_all(seed)
        return seed

    def seed_data(self, seed: int, *, workers: bool) -> None:
        """Seed the order of training samples, and workers, of loaders that are set up later."""
        self._data_seed, self._seed_workers = seed, workers

    def setup(self, model: nn.Module, *optimizers: Optimizer, move_to_device: bool = True) -> Any:
        """Prepare a model and the optimizers of its parameters; every rank must call it.

        Afterwards every rank has rank 0's weights. Make schedulers of the optimizers that it
        returns.

        Args:
            model: the user's; it is not copied.
            optimizers: those of this model's parameters.
            move_to_device: False leaves the model where it is.

        Returns:
            the model to call, or ``(model, *optimizers)``; see
            :class:`~distmetrics.runner.RunnerModule` and
            :class:`~distmetrics.runner.RunnerOptimizer`.

        Raises:
            ConfigurationError: outside of a launch, a model or optimizer that has been set up
                already, or an optimizer of another model.
            InputTypeError: ``model`` is no module, or one of ``optimizers`` no optimizer.
        """
        comm = self._comm("setup")
        _check_flags("setup", locals())
        _check_setup(model, optimizers, self._set_up)
        self._set_up += [model, *optimizers]
        if move_to_device:
            self._place(model, optimizers)
        with losses_named(comm):
            wrapped = RunnerModule(model, self.strategy, optimizers)
        self._models.append(wrapped)
        stepped = [RunnerOptimizer(optimizer, wrapped, self.strategy) for optimizer in optimizers]
        return (wrapped, *stepped) if stepped else wrapped

    def _place(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Move a model to this rank's device, and the optimizers' parameters and state after it."""
        before = list(model.parameters())
        self.strategy.place(model)
        # On XLA they are others.
        new: dict[Tensor, Tensor] = dict(zip(before, model.parameters(), strict=True))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["params"] = [new.get(each, each) for each in group["params"]]
            states = dict(optimizer.state)
            optimizer.state.clear()
            for parameter, state in states.items():
                optimizer.state[new.get(parameter, parameter)] = state
            if states:
                optimizer.load_state_dict(optimizer.state_dict())

    def setup_dataloaders(
        self,
        *loaders: Any,
        train: bool | None = None,
        replace_sampler: bool = True,
        move_to_device: bool = True,
    ) -> Any:
        """Prepare loaders: this rank's samples, on this rank's device.

        Args:
            loaders: one or several, of all the data; batch sizes are each rank's.
            train: True deals out so that every rank takes the same number of steps: where the
                samples don't divide, some count twice (or the tail is left out with ``drop_last``).
                False: every sample once, so that ranks may have different numbers of batches. None
                decides for each loader: one that shuffles, or has any sampler but the sequential
                one, is for training; ``backward`` in a pass over another is an error.
            replace_sampler: False leaves the samplers as they are.
            move_to_device: False leaves the batches where they are.

        Returns:
            a loader for one, else a list.

        Raises:
            ConfigurationError: outside of a launch, or a loader has been set up already.
            InputTypeError: one is no loader, or there is none.
        """
        shards = self._shards("setup_dataloaders")
        _check_flags("setup_dataloaders", locals())
        if not loaders:
            raise InputTypeError("setup_dataloaders needs at least one loader")
        made = []
        for loader in loaders:
            _check_loader(loader)
            training = shuffles(loader) if train is None else train
            if self._seed_workers:  # a stream is read alike by all ranks, to be dealt out then
                loader = seed_workers(loader, shards.rank if training or has_order(loader) else 0)
            if replace_sampler:
                loader = self.strategy.loader(loader, train=training, seed=self._data_seed)
            device = self.device if move_to_device else None
            made.append(RunnerLoader(loader, device, self._open_loaders, is_guess=train is None))
        return made[0] if len(made) == 1 else made

    def backward(
        self,
        loss: Tensor,
        model: RunnerModule | None = None,
        *,
        weight: float | Tensor | None = None,
    ) -> None:
        """Compute gradients, averaged over all ranks, and add them to those that are there.

        With a weight they are Σ w · ∇loss / Σ w over all ranks and all micro-batches since they
        were cleared: those of one process on all of the tokens. Inside :meth:`no_backward_sync`
        they are sums until the first call outside.

        Args:
            loss: of one element.
            model: the model that computed it, where several are set up; None where it depends on
                several.
            weight: the number of tokens, rows or boxes that the loss is the mean of; 0 where this
                rank has none, and then the loss may be NaN. Either all losses of an update have a
                weight, on all ranks, or none. One model is trained then, and its optimizers clear
                together.

        Raises:
            ConfigurationError: ``model`` is not set up, no set-up model has been called, or a
                loader is being read that was dealt out for evaluation. With a weight: the strategy
                takes none, several models are trained, or some optimizers have not cleared theirs.
            InputTypeError: the loss is no tensor.
            InputError: the loss has several elements or no gradient, or the weight is negative or
                not finite.
            PeerLostError: a rank died meanwhile, as in each call of the runner.
        """
        self._comm("backward")
        check_loss(loss, "the loss")
        models = _chosen_models(model, self._models, has_weight=weight is not None)
        _check_data(self._open_loaders)
        self.add_gradients(loss, models, weight)

    def add_gradients(
        self, loss: Tensor, models: Sequence[RunnerModule], weight: float | Tensor | None
    ) -> None:
        """Do what :meth:`backward` does, without checking the arguments; the trainer uses it."""
        calls = [each._runner for each in models]
        for each in calls:
            each.note_backward()
        with losses_named(self.strategy.comm()):
            if weight is not None:
                calls[0].gradients.backward(loss, weight, is_last=not calls[0].is_in_block)
                return
            for each in calls:
                each.gradients.note_loss(is_weighted=False)
            self.strategy.backward(loss)

    def no_backward_sync(
        self, model: RunnerModule, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """Return a block in which gradients are added up on this rank, and not shared.

        It is for all steps of an update but the last. An optimizer's step with gradients that have
        stayed on their rank is an error.

        Args:
            model: what :meth:`setup` returned. Its call and :meth:`backward` must both be inside.
            enabled: False makes the block do nothing: ``enabled=step % 4 != 3``.

        Raises:
            InputTypeError: ``model`` is not what :meth:`setup` returned.
        """
        _check_set_up("no_backward_sync", model)
        _check_flags("no_backward_sync", locals())
        return model._runner.keeping_gradients() if enabled else nullcontext()

    def clip_gradients(
        self,
        model: RunnerModule,
        optimizer: RunnerOptimizer,
        *,
        max_norm: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
    ) -> Tensor | None:
        """Clip the gradients' norm to ``max_norm``, or each value to ``clip_value``, before a step.

        Args:
            model: what :meth:`setup` returned.
            optimizer: what :meth:`setup` returned; its parameters' gradients are clipped.
            max_norm: the largest norm; or pass ``clip_value``.
            clip_value: the largest absolute value.
            norm_type: p of the norm, or inf.

        Returns:
            the norm before, over all ranks' parts of the gradients; None if values are clipped.

        Raises:
            ConfigurationError: neither or both of ``max_norm`` and ``clip_value``, or gradients of
                losses with a weight that are still sums.
            InputTypeError: model or optimizer is not what :meth:`setup` returned.
        """
        _check_set_up("clip_gradients", model, optimizer)
        if (max_norm is None) == (clip_value is None):
            raise ConfigurationError("clip_gradients takes either max_norm=... or clip_value=...")
        options: dict[str, Any] = {
            "max_norm": max_norm,
            "clip_value": clip_value,
            "norm_type": norm_type,
        }
        _check_flags("clip_gradients", options)
        model._runner.check_mean(optimizer.optimizer)
        with losses_named(self.strategy.comm()):
            return self.strategy.clip(model.module, optimizer.optimizer, **options)


def _run_on_rank(
    runner: Runner,
    fn: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return what a runner's ``run``, or ``fn`` with it, returns on one rank.

    The names of the arguments are shown to the user where one of them can't be pickled.
    """
    token = _is_launched.set(True)
    try:
        with runner.on_rank():
            kind: Any = type(runner)
            value = (kind.run.__wrapped__ if fn is None else fn)(runner, *args, **kwargs)
    finally:
        _is_launched.reset(token)
    if runner.strategy.isolated and runner.device.type != "cpu":  # the value is to be sent
        return to_host(value)
    return value


def _launching(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``run`` that launches the user's; ``super().run()`` inside it calls as usual."""

    @functools.wraps(run)
    def launched(self: Runner, *args: Any, **kwargs: Any) -> Any:
        if "strategy" not in vars(self):
            name = type(self).__name__
            raise ConfigurationError(
                f"{name}.__init__ has not called super().__init__(...) with the flags"
            )
        kind: Any = type(self)
        if self._launched and getattr(kind.run, "__wrapped__", None) is not run:
            return run(self, *args, **kwargs)
        return self._launch(None, args, kwargs)

    return launched


def _check_flags(who: str, values: Mapping[str, Any]) -> None:
    """Refuse flags of a method that are of the wrong kind; other values are not looked at."""
    check(who, values, {name: rule for name, rule in _TAKES.items() if name in values})


def _check_function(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse to launch what does not take the runner and these arguments."""
    if not callable(fn):
        raise InputTypeError(f"launch takes a function fn(runner, ...), got {describe(fn)}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # of a compiled callable: nothing is known beforehand
        return
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise InputTypeError(
            f"launch calls {name}(runner, ...) with what it got after it, and {name} takes "
            f"{signature}: {error}",
            do=f"def {name}(runner, ...), and pass launch its other arguments.",
        ) from None


def _check_setup(model: Any, optimizers: Sequence[Any], known: Sequence[Any]) -> None:
    """Refuse what is no model, no optimizer of it, or ``known``: set up already."""
    for obj in (model, *optimizers):
        is_set_up = isinstance(obj, RunnerModule | RunnerOptimizer)
        if is_set_up or any(obj is other for other in known):
            raise ConfigurationError(
                f"this {type(obj).__name__} has been set up already",
                do="call setup once for each model.",
            )
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"setup takes a model, an nn.Module, first; got a {type(model).__name__}"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise InputTypeError(
                f"setup takes optimizers after the model, got a {type(optimizer).__name__}"
            )
        advice = "make it of model.parameters(), and set both up together."
        check_steps_some(optimizer, model, advice)


def _check_set_up(who: str, model: Any, optimizer: Any = None) -> None:
    """Refuse a model, or an optimizer if one is given, that setup has not returned."""
    if not isinstance(model, RunnerModule):
        raise InputTypeError(
            f"{who} takes the model that setup returned, got a {type(model).__name__}"
        )
    if not isinstance(optimizer, RunnerOptimizer | None):
        raise InputTypeError(
            f"{who} takes the optimizer that setup returned, got a {type(optimizer).__name__}"
        )


def _check_loader(loader: Any) -> None:
    """Refuse what is no loader, or set up already."""
    if isinstance(loader, RunnerLoader):
        raise ConfigurationError(
            "this loader has been set up already", do="call setup_dataloaders once."
        )
    others = (str, bytes, nn.Module, Optimizer)
    if isinstance(loader, others) or not hasattr(loader, "__iter__"):
        raise InputTypeError(f"setup_dataloaders takes loaders, got a {type(loader).__name__}")


def check_loss(loss: Any, name: str) -> None:
    """Refuse what has no gradients to compute; ``name`` is what the user calls it.

    Raises:
        InputTypeError: it is no tensor; InputError: of several elements, or without a gradient.
    """
    if not isinstance(loss, Tensor):
        raise InputTypeError(f"{name} must be a tensor of one element, got {describe(loss)}")
    if loss.numel() != 1:
        raise InputError(
            f"{name} must have one element, got shape {list(loss.shape)}",
            likely="under 'dp' and 'ddp2' a model that returns its loss returns one for each "
            "replica.",
            do="let the model return its outputs, and compute the loss of them.",
        )
    if not loss.requires_grad:
        raise InputError(
            f"{name} has no gradient: computed under no_grad, detached, or of a frozen model?"
        )


def _chosen_models(
    model: Any, models: Sequence[RunnerModule], *, has_weight: bool
) -> Sequence[RunnerModule]:
    """Return the models that a backward is of; refuse it where they are not set up."""
    if not models or (model is not None and not any(model is known for known in models)):
        raise ConfigurationError(
            "backward of a model that is not set up",
            do="model, optimizer = runner.setup(model, optimizer), and call what it returns.",
        )
    if not any(known._runner.calls for known in models):
        raise ConfigurationError(
            "backward of a loss that no set-up model has computed: its gradients would not be "
            "averaged",
            do="call the one that setup returned.",
        )
    if not has_weight:
        return models if model is None else [model]
    trained = [each for each in models if any(p.requires_grad for p in each.parameters())]
    if len(trained) > 1:
        raise ConfigurationError(
            f"the loss has a weight, and {len(trained)} models are set up to be trained: it may "
            "have gradients for each",
            do="set up one module that holds them, with the optimizers of all its parameters.",
        )
    return trained or models


def _check_data(loaders: Sequence[RunnerLoader]) -> None:
    """Refuse a step of training while data is read that was dealt out for evaluation."""
    for loader in loaders:
        if why := loader.not_for_training:
            raise ConfigurationError(
                f"backward in a pass over data that was dealt out for evaluation, {why}",
                likely="it doesn't shuffle, and nothing else says what it is for."
                if loader.is_guess
                else "",
                do="setup_dataloaders(loader, train=True); train=False for data that is evaluated "
                "between steps.",
            )

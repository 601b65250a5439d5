"""The runner: a user's own loop on one device or many."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.launch.environment import ClusterEnvironment
from distmetrics.launch.joining import losses_named
from distmetrics.run.checks import (
    check_data,
    check_flags,
    check_function,
    check_loader,
    check_loss,
    check_set_up,
    check_setup,
)
from distmetrics.run.config import refuse_unknown
from distmetrics.run.runner_launching import launch, launching
from distmetrics.run.seed import seed_workers
from distmetrics.run.world import RunnerWorld
from distmetrics.run.wrapped import RunnerModule
from distmetrics.run.wrapped_loader import RunnerLoader, rank_loader, shuffles
from distmetrics.run.wrapped_optimizer import RunnerOptimizer, follow_parameters
from distmetrics.strategies.base import Layout, Strategy
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.registry import resolve
from distmetrics.strategies.weighted_gradients import check_apart

T = TypeVar("T")


class Runner(RunnerWorld):
    """Runs a training loop of one's own on one device or many: it is called, and calls nothing.

    Subclass it and put the loop into ``run``, or pass a function to :meth:`launch`. Either is
    called on every rank. The loop then calls what it gets from :meth:`setup` and
    :meth:`setup_dataloaders`, and :meth:`backward` instead of ``loss.backward()``.

    Args:
        strategy: how the model is split over devices: a name such as "ddp", a
            :class:`~distmetrics.strategies.base.Strategy`, or "auto".
        devices: number of processes on this machine, or what the strategy takes else; "auto", the
            default, is what a launcher has started, else every GPU, else 1.
        accelerator: "cpu", "gpu", "tpu" or "auto", the default.
        num_nodes: number of machines; default 1.
        precision: 64, 32, 16, "bf16" and so on; None leaves it as it is.
        plugins: a cluster environment of one's own.
        gpus: short for ``devices`` with ``accelerator="gpu"``.
        tpu_cores: short for ``devices`` with ``accelerator="tpu"``.
        seed: of all random generators, on every rank, and of the order of the training samples.
        layout: what ranks hold along the axes of a mesh, where not each has samples of its own;
            data is dealt out to its shards, and values go over it. Sizes, ``{"dp": 2, "tp": 2}``;
            roles of the strategy's mesh; or a function that returns a ``layout`` on each rank.

    Raises:
        ConfigurationError: flags that contradict each other, or ask for what is not here.

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
        resolved = resolve(
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
        super().__init__(resolved, seed)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "run" in vars(cls):
            cls.run = launching(cls.run)  # type: ignore[method-assign]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Override it with the loop; calling it launches the loop on every rank.

        Returns: what the loop returns; rank 0's where ranks are started for the call.

        Raises:
            ConfigurationError: it is not overridden, or a launch is under way.
            Exception: the error of the rank that failed first.
        """
        raise ConfigurationError(
            f"{type(self).__name__} has no run",
            do="override run(self, ...), or call launch(fn, ...).",
        )

    def launch(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(runner, *args, **kwargs)`` on every rank; results and errors are as of run.

        >>> Runner(strategy="single").launch(lambda runner, x: runner.world_size * x, 3)
        3
        """
        check_function(fn, args, kwargs)
        return launch(self, fn, args, kwargs)  # type: ignore[no-any-return]

    def setup(self, model: nn.Module, *optimizers: Optimizer, move_to_device: bool = True) -> Any:
        """Prepare a model and the optimizers of its parameters; every rank must call it.

        The model has rank 0's weights then. Make schedulers after it, for the optimizers that it
        returns.

        Args:
            model: the user's; it is not copied.
            optimizers: of this model's parameters.
            move_to_device: False leaves the model where it is.

        Returns: the model to call, or ``(model, *optimizers)``; see
            :class:`~distmetrics.runner.RunnerModule` and
            :class:`~distmetrics.runner.RunnerOptimizer`.

        Raises:
            ConfigurationError: outside of a launch, a model or optimizer that has been set up
                already, an optimizer of another model.
            InputTypeError: no module, or no optimizer.
        """
        comm = self._comm("setup")
        check_flags("setup", locals())
        check_setup(model, optimizers, self._set_up)
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
        follow_parameters(optimizers, before, list(model.parameters()))
        for optimizer in optimizers:
            if optimizer.state:
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
            loaders: of all the data; batch sizes are each rank's.
            train: True deals out so that every rank takes the same number of steps: where the
                samples don't divide, some count twice (or the tail is left out with ``drop_last``).
                False: every sample once, so that ranks may have different numbers of batches. None:
                a loader that shuffles, or has any sampler but the sequential one, is for training,
                each by itself; ``backward`` in a pass over another is an error.
            replace_sampler: False leaves the samplers as they are.
            move_to_device: False leaves the batches where they are.

        Returns: a loader for one, else a list.

        Raises:
            ConfigurationError: outside of a launch, or set up twice.
            InputTypeError: no loader.
        """
        self._comm("setup_dataloaders")
        check_flags("setup_dataloaders", locals())
        if not loaders:
            raise InputTypeError("setup_dataloaders needs at least one loader")
        made = []
        for loader in loaders:
            check_loader(loader)
            if replace_sampler:
                training = shuffles(loader) if train is None else train
                seed = self._seeded or 0
                loader = rank_loader(loader, self.strategy, train=training, seed=seed)
            if self._seed_workers:
                loader = seed_workers(loader, self.strategy.shards().rank)
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
        were cleared: what one process has on all of the tokens together. They are so after each
        call outside of :meth:`no_backward_sync`; inside, they are sums.

        Args:
            loss: of one element.
            model: the model that computed it, where several are set up; None where it depends on
                several. A loss with a weight then counts for each that it depends on, and inside of
                :meth:`no_backward_sync` for all: name the model where each has a loss of its own.
            weight: the number of tokens, rows or boxes that the loss is the mean of; 0 where this
                rank has none, and then the loss may be NaN. All losses of an update have a weight,
                on all ranks, or none has.

        Raises:
            ConfigurationError: nothing is set up, no set-up model has been called, ``model`` is
                none of them, a loader is being read that was dealt out for evaluation (ranks would
                take other steps than one process), the strategy takes no weight, or
                several models or optimizers have the same parameters and the loss a weight.
            InputTypeError: the loss is no tensor; InputError: not one element, without a gradient,
                or a weight that is no number from 0 on.
            PeerLostError: a rank died meanwhile, as in each call of the runner's.
        """
        comm = self._comm("backward")
        check_loss(loss, model, self._models)
        check_data(self._open_loaders)
        calls = [each._runner for each in (self._models if model is None else [model])]
        for each in calls:
            each.note_backward()
        sums = [each for call in calls for each in call.gradients]
        is_last = not any(each.is_in_block for each in calls)
        others = [
            each
            for known in self._models
            if known._runner not in calls
            for each in known._runner.gradients
        ]
        if weight is not None:
            check_apart([*sums, *others], comm.rank)
        with losses_named(comm):
            self._weighted.backward(loss, weight, sums, others, is_last=is_last)

    def no_backward_sync(
        self,
        model: RunnerModule,
        enabled: bool = True,
    ) -> AbstractContextManager[Any]:
        """Return a block in which gradients are added up on this rank, and not shared.

        It is for the steps of one update but its last.

        Args:
            model: what :meth:`setup` returned. Its call and :meth:`backward` must both be inside.
            enabled: False makes the block do nothing: ``enabled=step % 4 != 3``.

        A step with gradients that have stayed on their rank is an error.
        """
        check_set_up("no_backward_sync", model)
        check_flags("no_backward_sync", locals())
        if not enabled:
            return nullcontext()
        return model._runner.keeping_gradients()

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

        Returns: the norm before, over all ranks' parts of the gradients; None where values are
            clipped.

        Raises:
            ConfigurationError: neither or both of the two, or gradients of losses with a weight
                that are still sums; InputTypeError: not what :meth:`setup` returned.
        """
        check_set_up("clip_gradients", model, optimizer)
        if (max_norm is None) == (clip_value is None):
            raise ConfigurationError("clip_gradients takes either max_norm=... or clip_value=...")
        options: dict[str, Any] = {
            "max_norm": max_norm,
            "clip_value": clip_value,
            "norm_type": norm_type,
        }
        check_flags("clip_gradients", options)
        model._runner.check_mean(optimizer.optimizer)
        with losses_named(self.strategy.comm()):
            return self.strategy.clip(model.module, optimizer.optimizer, **options)

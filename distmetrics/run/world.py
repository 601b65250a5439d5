"""Who a rank of a runner is, and what it says to the others."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from distmetrics.arguments import FLAG, PATH, check, whole
from distmetrics.call_site import call_site
from distmetrics.collectives import ops
from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, DistmetricsError, InputError, InputTypeError
from distmetrics.log.log import Log
from distmetrics.message import reading
from distmetrics.metrics.sync import sync_and_compute
from distmetrics.run.checkpoint_file import write
from distmetrics.run.wrapped import RunnerModule, RunnerOptimizer
from distmetrics.strategies.base import Strategy
from distmetrics.tree import map_leaves, move

T = TypeVar("T")


class RunnerWorld:
    """Who this rank is, and what it says to the others, in a launch."""

    strategy: Strategy
    _launched: bool
    _log: Log | None

    def _comm(self, what: str) -> Communicator:
        """Return who talks to the other ranks, for ``what``, which needs them."""
        if not self._launched:
            raise ConfigurationError(
                f"{what} outside of a launch: there are no other ranks here yet",
                do="call it in run, or in the function that launch calls.",
            )
        return self.strategy.comm()

    def _shards(self, what: str) -> Communicator:
        """Return who talks about data and values: over the layout, where there is one."""
        self._comm(what)
        return self.strategy.shards()

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.strategy.device

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        return self.strategy.comm().world_size if self._launched else self.strategy.world_size

    @property
    def global_rank(self) -> int:
        """This rank in the job, from 0."""
        return self.strategy.comm().rank

    @property
    def local_rank(self) -> int:
        """This rank on its machine, from 0."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """This machine, from 0."""
        environment = self.strategy.environment()
        return 0 if environment is None else environment.node_rank

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0."""
        return self.global_rank == 0

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0 alone."""
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201

    def to_device(self, obj: T) -> T:
        """Return a model, which is moved in place, or a tree of tensors, on this rank's device."""
        if isinstance(obj, nn.Module):
            return obj.to(self.device)
        return move(obj, self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a block in the runner's precision, in which a model's call always is."""
        return self.strategy.forward()

    @property
    def log(self) -> Log:
        """The log of this launch, of the values of all ranks; see :class:`distmetrics.Log`.

        Raises:
            ConfigurationError: outside of a launch.
        """
        if self._log is None:
            self._log = Log(self._shards("log"))
        return self._log

    def barrier(self) -> None:
        """Return once every rank is here."""
        ops.barrier(comm=self._comm("barrier"), name="barrier")

    def all_gather(self, tree: T, *, sync_grads: bool = False) -> T:
        """Return every rank's tree, tensors stacked; see :func:`distmetrics.all_gather`."""
        return ops.all_gather(tree, sync_grads=sync_grads, comm=self._shards("all_gather"))

    def all_reduce(self, tree: T, op: str = "sum", *, weight: float | Tensor | None = None) -> T:
        """Reduce a tree of tensors over all ranks.

        Args:
            tree: of equal shapes on all ranks.
            op: "sum", "prod", "max", "min", or "mean".
            weight: for a mean, and only there: the number of samples behind this rank's values.

        Raises:
            InputError: another ``op``, or a mean without a weight.
            MismatchError: ranks disagree (on every rank).
        """
        comm = self._shards("all_reduce")
        if (op == "mean") != (weight is not None):
            raise InputError(
                "a mean over ranks takes the weight of this rank, and nothing else does",
                do="all_reduce(x, 'mean', weight=len(batch)); weight=1 counts every rank alike.",
            )
        if weight is not None:
            return ops.mean(tree, weight, comm=comm)
        return ops.all_reduce(tree, op, comm=comm)  # type: ignore[arg-type]

    def broadcast(self, obj: T, src: int = 0, *, allow_pickle: bool = False) -> T:
        """Return rank ``src``'s object on every rank: a tree of tensors, or other data.

        What the other ranks pass does not count: None will do. Tensors of an accelerator come to
        each rank's own.

        Args:
            obj: as for :func:`distmetrics.all_gather_object`.
            src: the rank that has it.
            allow_pickle: as for :func:`distmetrics.all_gather_object`.

        Raises:
            InputError: there is no rank ``src``.
            InputTypeError: the object can't be sent (on every rank).
        """
        comm = self._comm("broadcast")
        if not whole(src, 0) or src >= comm.world_size:
            raise InputError(
                f"broadcast from rank {src!r} in a world of {comm.world_size}", rank=comm.rank
            )
        content = torch.empty(0, dtype=torch.uint8, device="cpu")

        def serialized_size() -> int:
            nonlocal content
            content = serialize(map_leaves(_detached, obj), allow_pickle=allow_pickle)
            return content.numel()

        name = f"object of rank {src}" + (", allow_pickle=True" if allow_pickle else "")
        size, problem = _result_of(src, serialized_size, comm, name)
        if problem:
            raise InputTypeError(
                f"the object of rank {src} cannot be sent: {problem}", rank=comm.rank, peers=[src]
            )
        if comm.rank != src:
            with reading("the size of its object", src):
                content = torch.empty(size, dtype=torch.uint8, device=comm.device)
        run = ops.broadcast(content.to(comm.device), src, comm=comm)
        with reading("its object", src):
            received: T = deserialize(run, allow_pickle=allow_pickle, accelerator=self.device)
        return received

    def sync_and_compute(self, metrics: Any, *, allow_pickle: bool = False) -> Any:
        """Compute metrics over the data of all ranks; see :func:`distmetrics.sync_and_compute`."""
        comm = self._shards("sync_and_compute")
        return sync_and_compute(metrics, allow_pickle=allow_pickle, comm=comm)

    def save(self, path: Any, content: Any) -> None:
        """Write a checkpoint, on rank 0; every rank must call it, and all return once it is there.

        The file is whole or not there. In ``content``, a model or optimizer that :meth:`setup`
        returned stands for its whole state dict, gathered from all ranks where it is sharded.

        Args:
            path: where to; missing folders are made. The two may be given the other way round, as
                in ``torch.save``.
            content: what ``torch.save`` takes.

        Raises:
            InputTypeError: neither is a path.
            DistmetricsError: it could not be written (on every rank, with the reason).
        """
        comm = self._comm("save")
        if not isinstance(path, str | Path):
            path, content = content, path
        if not isinstance(path, str | Path):
            raise InputTypeError(
                f"save takes a path and a content, got no path but a {type(path).__name__}"
            )
        states = map_leaves(_whole_state, content)
        _, problem = _result_of(0, lambda: write(states, Path(path)), comm, f"save {path}")
        if problem:
            raise DistmetricsError(
                f"rank 0 could not write {path}: {problem}", rank=comm.rank, peers=[0]
            )

    def load(self, path: str | Path, *, weights_only: bool = True) -> Any:
        """Read a checkpoint, on every rank, with tensors on the CPU.

        Args:
            path: what :meth:`save` has written.
            weights_only: False also reads objects of any class: for files that you trust.
        """
        check("load", locals(), {"path": PATH, "weights_only": FLAG})
        return torch.load(Path(path), map_location="cpu", weights_only=weights_only)


def _whole_state(leaf: Any) -> Any:
    return leaf.state_dict() if isinstance(leaf, RunnerModule | RunnerOptimizer) else leaf


def _detached(leaf: Any) -> Any:
    return leaf.detach() if type(leaf) is Tensor else leaf


def _result_of(rank: int, fn: Callable[[], Any], comm: Communicator, name: str) -> tuple[Any, str]:
    """Return, on every rank, what ``fn`` returns on ``rank``, and what it raises there, or ""."""
    result, problem = None, ""
    if comm.rank == rank:
        try:
            result = fn()
        except Exception as error:  # noqa: BLE001  (every rank gets it, whatever it is)
            problem = f"{type(error).__name__}: {error}"

    def read(outcome: Any) -> tuple[Any, str]:
        return outcome[0], str(outcome[1])

    outcomes = gather_objects((result, problem), read, name, call_site(), comm=comm)
    outcome: tuple[Any, str] = outcomes[rank]
    return outcome

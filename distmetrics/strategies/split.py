"""What FSDP and DeepSpeed share: a model whose weights lie in parts on the ranks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Entry, Inputs, Strategy, TrainingStep


class SplitModule(ABC):
    """The user's module inside a library that shares out its weights: in parts, or whole.

    Attributes:
        engine: the library's own object, which takes a training step with the weights in parts.
        without_batch: what to say instead where every rank needs a batch, else "".
        sharded: whether weights are shared out at all.
    """

    engine: Any
    without_batch = ""
    sharded = True
    _gathered = False

    def __call__(self, inputs: Inputs | None, method: str) -> Any:
        """Take a training step, in which groups of weights become whole one after another."""
        self.be_parts()
        if inputs is None and self.without_batch:
            raise ConfigurationError(
                "this rank has no batch for a training step, which needs the weights of all ranks",
                do=f"give every rank as many batches, or say {self.without_batch}.",
            )
        return self.engine(inputs, method)

    @property
    def is_whole(self) -> bool:
        """True if every parameter is whole on this rank."""
        return self._gathered or not self.sharded

    def be_whole(self) -> None:
        """Make every parameter whole, until :meth:`be_parts`; all ranks must call it."""
        if not self.is_whole:
            self.gather()
            self._gathered = True

    def be_parts(self) -> None:
        """Give back what other ranks own; nothing is sent."""
        if self._gathered:
            self.give_back()
            self._gathered = False

    @abstractmethod
    def gather(self) -> None:
        """Make every parameter whole, of which only parts are here."""

    @abstractmethod
    def give_back(self) -> None:
        """Keep this rank's parts alone."""

    @abstractmethod
    def share_gradients(self, enabled: bool) -> None:
        """Let the gradients of the next backward passes travel, or stay on each rank."""

    @abstractmethod
    def undo(self) -> None:
        """Make the user's module a plain one, with whole weights; all ranks must call it."""


class SplitStrategy(Strategy):
    """One process a device; weights may lie in parts while training, and are whole otherwise.

    An evaluation, and a checkpoint while it is written, hold the whole weights on every rank: ranks
    have different numbers of evaluation batches, and one without would keep the others waiting.

    Attributes:
        modules: what is split now.
    """

    whole_on_each_rank = False
    manual = False

    def __init__(self) -> None:
        self.modules: list[Any] = []

    @contextmanager
    def accumulate(self, step: TrainingStep) -> Iterator[None]:
        """Add up whole gradients on each rank, and let none travel."""
        if not isinstance(step, SplitModule):
            yield
            return
        step.share_gradients(False)
        try:
            yield
        finally:
            step.share_gradients(True)

    def align(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers, and whole weights until training goes on."""
        super().align(module)
        for split in self.modules:
            split.be_whole()

    def evaluation_call(self, entry: Entry) -> Callable[..., Any]:
        """Return the call, which refuses to run while weights are in parts."""

        def run(*args: Any) -> Any:
            if not all(split.is_whole for split in self.modules):
                raise ConfigurationError(
                    f"strategy={self.name!r}: the model is called without gradients, and its "
                    "weights are in parts",
                    do="model.eval() on every rank before: it makes them whole.",
                )
            return entry(*args)

        return run

    def release(self) -> None:
        """Make the user's modules whole and plain again; called on every rank."""
        for module in self.modules:
            module.undo()
        self.modules.clear()


def replace_parameters(module: nn.Module, new: Mapping[Any, nn.Parameter]) -> None:
    """Put other parameters into the places of a module's."""
    for part in module.modules():
        named: dict[str, Any] = part._parameters
        named.update({name: new.get(old, old) for name, old in named.items()})

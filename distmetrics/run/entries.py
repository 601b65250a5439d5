"""The names that one rank logs: how each is combined, and what the rank adds up of it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from distmetrics.errors import ConfigurationError
from distmetrics.log.kinds import KINDS
from distmetrics.log.window import Slot, Window


class Key(NamedTuple):
    """What a value is kept under: the user's name, and its loader where there are several."""

    name: str
    loader: int = -1

    @property
    def label(self) -> str:
        """The name that the user reads."""
        return self.name if self.loader < 0 else f"{self.name}/dataloader_idx_{self.loader}"

    def of(self, moment: str) -> Self:
        """Return the key of the value of each step, or of the epoch, where there are both."""
        return self._replace(name=f"{self.name}_{moment}")


class Kind(NamedTuple):
    """How a name is logged: what all ranks that log it must agree on.

    Attributes:
        reduce_fx: how values are combined.
        scope: whose values count.
        metric: the attribute of the module that holds the metric object; empty for a value.
        bare: True where a metric's several values go by their own names.
        forked: True where there is a value of each step too: this one is also ``name_epoch``.
    """

    reduce_fx: str = "mean"
    scope: str = "all ranks"
    metric: str = ""
    bare: bool = False
    forked: bool = False

    def __str__(self) -> str:
        if self.metric:
            return f"the metric self.{self.metric}"
        return f"a {self.reduce_fx} over {self.scope}"


def read(text: str) -> tuple[Key, Kind]:
    """Return what a name of a window means, maybe a peer's; raise anything for what is none."""
    name, loader, reduce_fx, scope, metric, bare, forked = json.loads(text)
    kind = Kind(str(reduce_fx), str(scope), str(metric), bool(bare), bool(forked))
    return Key(str(name), int(loader)), kind


@dataclass(slots=True)
class Entry:
    """A name that this rank logs.

    Attributes:
        kind: how.
        slot: where its values go.
        steps: in how many steps.
    """

    kind: Kind
    slot: Slot
    steps: int = 0


class Entries(dict[Key, Entry]):
    """The names that this rank logs.

    Attributes:
        window: adds up their values.
        batches: how many there were, by loader.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window = Window()
        self.batches = Counter[int]()

    def of(self, key: Key, kind: Kind) -> Entry:
        """Return the entry of ``key``, a new one if there is none.

        Raises:
            ConfigurationError: the name was logged in another way before.
        """
        if key not in self:
            text = json.dumps([*key, *kind])  # ranks that log it so have one name for it
            self[key] = Entry(kind, self.window.slot(text, KINDS[kind.reduce_fx]))
        known = self[key].kind
        if known != kind:
            raise ConfigurationError(
                f"{key.label!r} is logged in two ways: as {known}, and as {kind}",
                do="log it in one way, or under two names.",
            )
        return self[key]

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what the window of this rank, or of another, has returned to be saved."""
        for text in state["kinds"]:
            self.of(*read(text))
        self.window.load(state)

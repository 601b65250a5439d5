"""Every error that distmetrics raises, and the one builder of their texts.

::

    Exception
    └── DistmetricsError            anything below; carries .code .rank .peers .site
        ├── MismatchError           ranks disagree on a call: no data was moved
        │   └── LayoutError         ranks that should hold the same samples do not
        ├── DivergedError           ranks are in different places, and one waits in vain
        ├── PeerLostError           a rank raised, exited or was killed while others needed it
        ├── StateError              a metric's state cannot be read or synced
        ├── LawViolation            a metric breaks a law of the testing kit
        ├── InputError (ValueError)         a value that makes no sense
        │   └── InputTypeError (TypeError)   a value of the wrong type
        ├── ConfigurationError (ValueError)  flags, environment or set-up contradict each other
        └── MissingDependencyError (ImportError)

A text has these parts: what is wrong; a line for each rank; what became of the data; the likely
cause; what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

__all__ = [
    "ConfigurationError",
    "DistmetricsError",
    "DivergedError",
    "InputError",
    "InputTypeError",
    "LawViolation",
    "LayoutError",
    "MismatchError",
    "MissingDependencyError",
    "PeerLostError",
    "Site",
    "StateError",
    "compose",
    "rank_ranges",
]


class Site(NamedTuple):
    """A place in the user's code: file, line and function.

    >>> str(Site("train.py", 88, "evaluate"))
    'train.py:88 in evaluate'
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Ranks(tuple[int, ...]):
    """Ranks that a text names: ``str(Ranks([0, 1, 3]))`` is ``ranks 0-1, 3``."""

    def __str__(self) -> str:
        return who(self)


class DistmetricsError(Exception):
    """Base of all errors of distmetrics: its attributes are the parts of the text.

    Attributes:
        per_rank: what each rank did, by rank; {} where the error is not about several ranks.
        notes: what became of data and state.
        likely: the likely cause, or ``""``.
        do: what to do, or ``""``.
        code: stable short name of the kind, for logs and searches.
        rank: the rank on which this copy was raised, or None outside a world.
        peers: the ranks that the error is about.
        site: the :class:`~distmetrics.errors.Site` in the user's code where this rank was, or None.

    >>> error = DistmetricsError("no data", likely="an empty shard.", do="look at the sampler.")
    >>> print(error)
    no data
    Likely: an empty shard.
    Do:     look at the sampler.
    """

    code: ClassVar[str] = "error"
    is_of_job = False  # whether ranks have the job's numbers, and not those of a communicator
    compared = ""  # the text with a communicator's numbers

    def __init__(
        self,
        what: str | Iterable[str | Ranks],
        *,
        per_rank: Mapping[int, str] | None = None,
        notes: Iterable[str] = (),
        likely: str = "",
        do: str = "",
        rank: int | None = None,
        peers: Iterable[int] = (),
        site: Site | None = None,
    ) -> None:
        self._parts: list[str | Ranks] = [what] if isinstance(what, str) else [*what]
        super().__init__(self.what)
        self.per_rank = dict(per_rank or {})
        self.notes = tuple(notes)
        self.likely = likely
        self.do = do
        self.rank = rank
        self.peers = tuple(peers)
        self.site = site

    @property
    def what(self) -> str:
        """What is wrong, in the user's terms."""
        return "".join(map(str, self._parts))

    def call_ranks(self, numbers: Sequence[int]) -> None:
        """Replace the communicator's numbers of ranks by the job's; later calls do nothing."""
        if self.is_of_job:
            return
        self.is_of_job = True
        self.compared = str(self)

        def number(rank: int) -> int:
            return numbers[rank] if rank < len(numbers) else rank

        self._parts = [
            Ranks(map(number, part)) if isinstance(part, Ranks) else part for part in self._parts
        ]
        self.args = (self.what,)
        self.per_rank = {number(rank): line for rank, line in self.per_rank.items()}
        self.peers = tuple(map(number, self.peers))
        if self.rank is not None:
            self.rank = number(self.rank)

    def __str__(self) -> str:
        return compose(self.what, self.per_rank, notes=self.notes, likely=self.likely, do=self.do)


class MismatchError(DistmetricsError):
    """Ranks disagree on a call: on operation, name, tree, dtype or shape; before data moves.

    >>> fn = lambda comm: all_reduce(torch.zeros(1 + comm.rank), comm=comm)
    >>> outcomes(2, fn)[0].error.what
    'ranks disagree on all_reduce sum: rank 1 sends float32[2], rank 0 sends float32[1]'
    """

    code = "mismatch"


class LayoutError(MismatchError):
    """Ranks do not hold what a layout says, such as the same samples; raised on every rank of it.

    >>> def loss(comm):
    ...     ranks = layout({"tp": 2}, comm=comm, tp="same")
    ...     return mean(float(comm.rank), weight=1, comm=ranks)
    >>> outcomes(2, loss)[0].error.what
    'along the axis tp, said to hold the "same" samples, the value differs between ranks 0-1'
    """

    code = "layout"


class DivergedError(DistmetricsError):
    """Ranks are in different places: at least one waits in a call that another will never make.

    >>> fn = lambda comm: barrier(comm=comm) if comm.rank == 0 else None
    >>> outcomes(2, fn)[0].error.what
    'rank 1 has returned, and others still wait for it'
    """

    code = "diverged"


class PeerLostError(DistmetricsError):
    """A rank raised, exited or was killed while this one needed it.

    >>> fn = lambda comm: barrier(comm=comm) if comm.rank == 0 else 1 / 0
    >>> lost = outcomes(2, fn)[0].error
    >>> lost.what, lost.peers
    ('rank 1 failed and will never answer', (1,))
    """

    code = "peer-lost"


class StateError(DistmetricsError):
    """The state of a metric cannot be read, synced or restored.

    >>> sync_and_compute({"f1": 3})
    Traceback (most recent call last):
    distmetrics.errors.StateError: sync of metrics: a dict holds no metric that distmetrics knows...
    """

    code = "state"


class LawViolation(DistmetricsError, AssertionError):  # noqa: N818  (a law is violated, not an error)
    """A metric breaks a law of the testing kit.

    It is also an ``AssertionError``.

    >>> from distmetrics.testing import laws
    >>> from torchmetrics.aggregation import RunningMean
    >>> case = [[(2.0,)], [(1.0,)]]  # a batch on each of two ranks
    >>> laws.SINGLE_IS_SHARDED(lambda: RunningMean(window=1), case)
    Traceback (most recent call last):
    distmetrics.errors.LawViolation: RunningMean breaks the law single-is-sharded...
    """

    code = "law"


class InputError(DistmetricsError, ValueError):
    """A value that makes no sense, such as a negative weight; a collective raises on every rank.

    It is also a ``ValueError``.

    >>> mean(1.0, weight=-1)
    Traceback (most recent call last):
    distmetrics.errors.InputError: mean: the weight is -1, which is no finite number from 0 on...
    """

    code = "input"


class InputTypeError(InputError, TypeError):
    """A value of the wrong type, such as a string to be summed; a collective raises on every rank.

    It is also a ``TypeError``.

    >>> all_reduce("text")
    Traceback (most recent call last):
    distmetrics.errors.InputTypeError: all_reduce sum: the value is a str, of which...
    """

    code = "input-type"


class ConfigurationError(DistmetricsError, ValueError):
    """Flags, environment or set-up contradict each other.

    It is also a ``ValueError``.

    >>> Runner(strategy="single", devices=2)
    Traceback (most recent call last):
    distmetrics.errors.ConfigurationError: strategy='single' runs on one device, and devices=2
    Do:     say strategy='auto', 'ddp' or 'ddp_spawn'.
    """

    code = "configuration"


class MissingDependencyError(DistmetricsError, ImportError):
    """An optional package is needed and not installed; the text has the command to install it.

    It is also an ``ImportError``. What needs the package raises it when it is imported or made.

    >>> raise MissingDependencyError.of("rich", "a progress bar or a table")
    Traceback (most recent call last):
    distmetrics.errors.MissingDependencyError: a progress bar or a table needs rich, which is not...
    Do:     pip install rich
    """

    code = "missing-dependency"

    @classmethod
    def of(cls, package: str, why: str) -> MissingDependencyError:
        """Return the error for ``package``, as pip calls it, which ``why`` needs."""
        return cls(f"{why} needs {package}, which is not installed.", do=f"pip install {package}")


@contextmanager
def optional(module: str, why: str, package: str = "") -> Iterator[None]:
    """Turn a failed import of a module in the block into the error that says what to install.

    ``package`` is what pip calls it, if by another name. Other imports fail as they do.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise MissingDependencyError.of(package or module, why) from error


def rank_ranges(ranks: Iterable[int]) -> str:
    """Write ranks as short ranges.

    >>> rank_ranges([0, 1, 3, 4, 5, 9])
    '0-1, 3-5, 9'
    """
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)


def who(ranks: Iterable[int]) -> str:
    """Name ranks: ``rank 2`` or ``ranks 0-1, 3``."""
    ranks = sorted(set(ranks))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_ranges(ranks)}"


# How lines of ranks begin: said of one, and of several.
_OF_SEVERAL = {
    "does": "do",
    "has": "have",
    "is": "are",
    "sends": "send",
    "its process is": "their processes are",
    "waits": "wait",
    "was": "were",
}


def said_of(ranks: Collection[int], line: str) -> str:
    """Return a line about one rank as it is said of these."""
    for one, several in _OF_SEVERAL.items():
        if len(ranks) > 1 and line.startswith(f"{one} "):
            return several + line.removeprefix(one)
    return line


def ranks_do(ranks: Collection[int], line: str) -> str:
    """Return ranks with what is said of them.

    >>> ranks_do([1], "has left"), ranks_do([0, 2], "has left")
    ('rank 1 has left', 'ranks 0, 2 have left')
    """
    return f"{who(ranks)} {said_of(ranks, line)}"


def first_line(text: object) -> str:
    """Return the first line of a text, or of an error's."""
    return str(text).strip().partition("\n")[0]


def in_short(error: BaseException | None) -> str:
    """Return an error's kind and its first line."""
    return f"{type(error).__name__}: {first_line(error)}"


def by_line(lines: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the ranks of each line, in the order in which the lines come."""
    ranks_of: dict[str, list[int]] = {}
    for rank, line in lines.items():
        ranks_of.setdefault(line, []).append(rank)
    return ranks_of


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def compose(
    what: str,
    per_rank: Mapping[int, str],
    *,
    notes: Iterable[str] = (),
    likely: str = "",
    do: str = "",
) -> str:
    """Build a text of the one shape that all errors have.

    Args:
        what: what is wrong, in the user's terms; one line where there are lines of ranks.
        per_rank: what each rank did; ranks with equal lines share one, and the verb agrees. Line
            breaks are written as escapes here and in ``what``.
        notes: what became of data and state.
        likely: the likely cause.
        do: what to do.

    >>> print(compose("ranks disagree", {0: "a", 1: "a", 2: "b"}, likely="a typo", do="fix it"))
    ranks disagree
    <BLANKLINE>
      ranks 0-1  a
      rank 2     b
    <BLANKLINE>
    Likely: a typo
    Do:     fix it
    """
    tail = [*notes]
    if likely:
        tail.append(f"Likely: {likely}")
    if do:
        tail.append(f"Do:     {do}")
    if not per_rank:
        return "\n".join([what, *tail])
    groups = by_line({rank: _one_line(line) for rank, line in sorted(per_rank.items())})
    width = max(len(who(ranks)) for ranks in groups.values())
    lines = [f"  {who(ranks):<{width}}  {said_of(ranks, line)}" for line, ranks in groups.items()]
    paragraphs = [_one_line(what), "\n".join(lines), "\n".join(tail)]
    return "\n\n".join(filter(None, paragraphs))


def error_class(name: str) -> type[DistmetricsError]:
    """Return the class of an error by its name."""
    found: type[DistmetricsError] = globals()[name]
    return found


def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks of a text made by :func:`~distmetrics.errors.rank_ranges`.

    >>> ranks_in("0-1, 3"), ranks_in("")
    ((0, 1, 3), ())
    """
    spans = [part.split("-") for part in text.split(", ") if part]
    return tuple(rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1))

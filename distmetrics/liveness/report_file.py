"""What a rank leaves behind when a job ends in an error, as its file has it. Pure."""

from dataclasses import dataclass, field

SCHEMA = 1
_WAITED = ("diverged", "peer-lost")  # codes of errors of ranks that waited for others in vain
_LET_DOWN = (*_WAITED, "connection")  # codes of errors that another rank began


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call of a rank.

    Attributes:
        number: counts the calls of its group, the same on all its ranks.
        group: name of the process group.
        op: the operation with its name: ``all_gather "val/f1"``.
        detail: what the rank sends: ``float32[10]``.
        site: the line of the user's code.
        started: seconds since 1970, by the clock of the rank's host.
        ended: likewise, or None while the rank waited.
    """

    number: int
    group: str
    op: str
    detail: str
    site: str
    started: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that a rank raised; ``peers`` are the ranks that it is about.

    Ranks that raised the same have peers and a place of their own. Only an error of ours has a
    likely cause and says what to do, if it can; both are None in other errors.
    """

    kind: str
    code: str
    text: str
    peers: tuple[int, ...] | None = field(compare=False)
    site: str = field(compare=False)
    likely: str | None = None
    do: str | None = None

    @property
    def let_down(self) -> bool:
        """True if another rank began it."""
        return self.code in _LET_DOWN


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank left behind.

    Attributes:
        schema: the version of the format.
        rank: whose it is.
        world_size: of the job.
        host: name of the machine.
        pid: of the process.
        written: when, in seconds since 1970.
        error: what the rank raised, or None where it was elsewhere.
        where: its stack in the user's code, innermost first.
        calls: its last calls, oldest first.
    """

    schema: int
    rank: int
    world_size: int
    host: str
    pid: int
    written: float
    error: Failure | None
    where: tuple[str, ...]
    calls: tuple[Call, ...]

    @property
    def stuck(self) -> list[Call]:
        """The calls that it never got out of, and the one in which it was let down."""
        last = self.calls[-1:] if self.error and self.error.code in _WAITED else ()
        return [call for call in self.calls if call.ended is None or call in last]

    @property
    def own_error(self) -> Failure | None:
        """The error that it raised, unless another rank began it."""
        return None if self.error is None or self.error.let_down else self.error

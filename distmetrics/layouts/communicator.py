"""A communicator over a mesh: what its axes mean decides who talks to whom."""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.header import Header, Problem, agree
from distmetrics.collectives.message import Message, Size, decode, encode, reading
from distmetrics.collectives.ops import gather_messages, meet
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.call_lock import enter_layout, exchanges_over, take
from distmetrics.comm.communicator import (
    Call,
    Communicator,
    PassingCommunicator,
    SingleCommunicator,
    chosen,
    numbered,
)
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    InputTypeError,
    LayoutError,
    Ranks,
    StateError,
    error_class,
)
from distmetrics.layouts.mesh import SAME, SHARD, Mesh, known, sizes_and_ranks
from distmetrics.tree import flatten

# Sums of bfloat16 in another order differ by about one part in a thousand.
RELATIVE, ABSOLUTE = 1e-3, 1e-6


def far_apart(first: Any, mine: Any) -> dict[str, str]:
    """Return what differs by more than rounding, with both values, by its path.

    >>> far_apart({"loss": torch.tensor(1.0), "n": 3}, {"loss": torch.tensor(1.0001), "n": 4})
    {"['n']": '4 for 3'}
    """
    theirs, spec = flatten(first)
    own, own_spec = flatten(mine)
    if spec.text != own_spec.text:
        return {"the result": f"{own_spec.text} for {spec.text}"}
    apart = {}
    for path, one, other in zip(spec.paths, theirs, own, strict=True):
        if not _is_close(one, other):
            apart[path or "the value"] = f"{_short(other)} for {_short(one)}"
    return apart


def _is_close(first: Any, mine: Any) -> bool:
    if not isinstance(first, Tensor | Number) or not isinstance(mine, Tensor | Number):
        return bool(first == mine)
    one, other = (torch.as_tensor(each).detach().cpu() for each in (first, mine))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_complex():
        one, other = one.double(), other.double()
    near = torch.isclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    return bool(near.all())


def _short(value: Any) -> str:
    return " ".join(f"{value}".split())[:40]


_WORDS = struct.Struct("<4Q")
_WRAP = 1 << 64
CALL, ERROR = "the call", "an error"


class Part(Message, frozen=True):
    """What a rank would send of one state or leaf: its name and its digest."""

    name: str
    digest: str


class Proof(Message, frozen=True):
    """What a rank would send in a call."""

    parts: tuple[Part, ...]


class HandedOver(Message, frozen=True):
    """How many bytes of a result a rank hands over."""

    nbytes: Size


def parts_of(call: bytes, tensors: Mapping[str, Tensor]) -> list[Part]:
    """Return what would be sent: the call, but for the line that makes it, and data."""
    parts = [Part(CALL, _digest(call))]
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        parts.append(Part(name, _digest(to_bytes(plain.view(-1).view(torch.uint8)))))
    return parts


def _digest(data: bytes) -> str:
    # Ranks are compared by it, not guarded from each other; where the processor has no instructions
    # for it, it is still no slower than others.
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:32]


def share(mesh: Mesh, rank: int, text: str) -> Tensor:
    """Return what a rank adds to the sum that must be zero.

    Args:
        mesh: with the roles.
        rank: of the mesh.
        text: what must be the same.

    >>> mesh = Mesh.of({"tp": 2}, {"tp": "same"})
    >>> share(mesh, 0, "equal") + share(mesh, 1, "equal")
    tensor([0, 0, 0, 0])
    """
    alike = mesh.along(rank, mesh.axes(SAME))
    factor = _factor(rank)
    if rank == alike[-1]:
        factor = -sum(map(_factor, alike[:-1])) % _WRAP
    digest = hashlib.blake2b(text.encode(), digest_size=_WORDS.size).digest()
    words = [word * factor % _WRAP for word in _WORDS.unpack(digest)]
    signed = struct.unpack("<4q", _WORDS.pack(*words))
    return torch.tensor(signed, dtype=torch.int64)


def _factor(rank: int) -> int:
    """Return a number that looks random; odd, so that no difference is lost by multiplying."""
    digest = hashlib.blake2b(str(rank).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


class Difference(NamedTuple):
    """Where a claim fails.

    Attributes:
        axis: that was said to hold the same.
        name: of the first state that differs.
        ranks: that should be alike, with their digests.
    """

    axis: str
    name: str
    ranks: dict[int, str]


def differences(mesh: Mesh, parts: Mapping[int, Sequence[Part]]) -> list[Difference]:
    """Return, for each axis that is said to hold the same and does not, the first difference.

    Args:
        mesh: with the roles.
        parts: what each rank that has values would send.
    """
    found = []
    for axis in mesh.axes(SAME):
        for rank in parts:
            line = mesh.along(rank, [axis])
            if rank == line[0] and (different := _first(axis, {r: parts[r] for r in line})):
                found.append(different)
                break
    return found


def _first(axis: str, parts: Mapping[int, Sequence[Part]]) -> Difference | None:
    """Return the first part in which ranks differ."""
    by_name = {r: {one.name: one.digest for one in each} for r, each in parts.items()}
    names = dict.fromkeys(name for each in by_name.values() for name in each)
    for name in sorted(names, key=lambda name: (name != ERROR, name == CALL)):
        digests = {rank: each.get(name, "nothing") for rank, each in by_name.items()}
        if len(set(digests.values())) > 1:
            return Difference(axis, name, digests)
    return None


def part_of(error: Exception | None) -> list[Part]:
    """Return an error of this rank as a part, for it to be compared."""
    if error is None:
        return []
    text = getattr(error, "compared", "") or str(error)
    return [Part(ERROR, f"{type(error).__name__}: {text}")]


def refusal(mesh: Mesh, rank: int, parts: Mapping[int, Sequence[Part]]) -> LayoutError:
    """Return the error for ranks that are said to hold the same samples and do not."""
    first, *others = differences(mesh, parts)
    axes = " and ".join([first.axis, *(each.axis for each in others)])
    what: list[str | Ranks] = [f"{first.name} differs between ", Ranks(first.ranks)]
    if "nothing" in first.ranks.values():
        what = ["only some of ", Ranks(first.ranks), f" have {first.name}"]
    return LayoutError(
        [f'along the axis {axes}, said to hold the "same" samples, ', *what],
        per_rank={place: f"{first.name} {digest[:200]}" for place, digest in first.ranks.items()},
        notes=["Every rank keeps what it had."],
        likely=f"the ranks along {first.axis} hold other samples, or only one of them has values.",
        do=f'say {first.axis}="shard", or which coordinate has the values; where the samples are '
        'the same and only rounding differs, same="close".',
        rank=rank,
        peers=first.ranks,
    )


class Outcome(NamedTuple):
    """What a call has given: a result or an error."""

    result: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, make: Callable[[], Any]) -> Outcome:
        """Make a call; of its error the other ranks must hear before it is raised."""
        try:
            return cls(make())
        except Exception as error:  # noqa: BLE001  (raised by get())
            return cls(error=error)

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def hand_over(comm: Communicator, src: int, mine: Outcome) -> Outcome:
    """Give the outcome of rank ``src`` to all ranks of ``comm``.

    One round where it fits into a frame, as numbers do; else one more. A result that is no data
    becomes an error on every rank.
    """
    data = torch.empty(0, dtype=torch.uint8)
    if comm.rank == src:
        mine, data = _sendable(mine, comm.members[src])
    data = data.to(comm.device)
    capacity = inline_capacity(comm.world_size)
    body = encode(HandedOver(data.numel()))
    met = exchange(
        comm,
        Header("what a layout hands over", body=body),
        data if data.numel() <= capacity else data[:0],
    )
    headers = met.headers()
    agree(headers, comm.rank)
    size = decode(HandedOver, headers[src].body, "how much it hands over", src).nbytes
    sent = met.move()[src][0]
    if size > capacity:
        check_memory(comm, size)
        sent = comm.broadcast(data if comm.rank == src else data.new_empty(size), src)
    if comm.rank == src:
        return mine
    with numbered(comm), reading("what it hands over", src):
        return _received(deserialize(sent, accelerator=comm.device), comm.members[comm.rank])


def _sendable(outcome: Outcome, rank: int) -> tuple[Outcome, Tensor]:
    """Return an outcome that can be sent, and its bytes; ``rank``: this one, in the job."""
    if outcome.error is None:
        try:
            return outcome, serialize([outcome.result])
        except InputTypeError as error:
            kind = type(outcome.result).__name__
            what = f"the result, a {kind}, cannot be given to ranks without values: {error.what}"
            refused = InputTypeError(what, rank=rank)
            refused.is_of_job = True
            outcome = Outcome(error=refused)
    told = outcome.error
    if not isinstance(told, DistmetricsError):  # of a metric's compute(), say
        told = StateError(
            f"the call failed on the ranks with values: {type(told).__name__}: {told}"
        )
    texts = (type(told).__name__, told.what, told.likely, told.do)
    return outcome, serialize([None, *texts, [*told.notes], told.per_rank, [*told.peers]])


def _received(parts: list[Any], rank: int) -> Outcome:
    """Return a peer's outcome, as it is raised on ``rank``; raise anything for what is none."""
    if len(parts) == 1:
        return Outcome(parts[0])
    _, kind, what, likely, do, notes, per_rank, peers = parts
    error = error_class(kind)(
        str(what),
        per_rank={int(each): str(line) for each, line in per_rank.items()},
        notes=map(str, notes),
        likely=str(likely),
        do=str(do),
        rank=rank,
        peers=map(int, peers),
    )
    error.is_of_job = True
    return Outcome(error=error)


R = TypeVar("R")
_SAMES = ("exact", "close")


class layout(PassingCommunicator):  # noqa: N801  (users call it as a function)
    """Say what the ranks of a mesh hold, once; collectives and metrics over it are then right.

    Args:
        mesh: a ``DeviceMesh`` whose dimensions have names, or sizes by name, such as
            ``{"dp": 4, "tp": 2}``, which number the ranks of ``comm`` row by row.
        comm: of the ranks of the mesh; default the communicator in force. Making a layout is a
            collective: every rank of it must.
        same: how that is compared: "exact", bit for bit; or "close", by results, which may differ
            in rounding; all ranks get the first one's.
        roles: one for each axis.

            - ``"shard"``: ranks hold other samples; they are reduced over.
            - ``"same"``: ranks hold the same samples, which count once. That is proved in every
              call: what each would send is compared.
            - ``"first"``, ``"last"``, a number: only ranks of that coordinate have values. The
              others get the result, and what they pass is not looked at.

    Attributes:
        rank: of this rank's shard; ``world_size``: the number of shards.
        members: the ranks of these shards, as the job numbers them.
        mesh: axes, sizes and roles.
        whole: the communicator of all ranks of the mesh.

    Raises:
        ConfigurationError: an axis has no role, or sizes and ranks do not go together.
        LayoutError: in a call, on every rank: a role is wrong.

    >>> from distmetrics import mean
    >>> def loss(comm):
    ...     ranks = layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
    ...     return mean(float(comm.rank // 2), weight=1 + comm.rank // 2, comm=ranks)
    >>> [f"{value:.3f}" for value in run(4, loss)]
    ['0.667', '0.667', '0.667', '0.667']
    """

    def __init__(
        self,
        mesh: Any,
        *,
        comm: Communicator | None = None,
        same: str = "exact",
        **roles: str | int,
    ) -> None:
        self._make(lambda: (mesh, roles), comm, same)

    def _make(
        self,
        find: Callable[[], tuple[Any, dict[str, Any]]],
        comm: Communicator | None,
        same: str,
    ) -> None:
        """Make the layout, once all ranks mean the same one.

        Ranks that mean other groups would wait for each other in them. ``find`` returns the mesh
        and the roles.
        """
        whole, problem = chosen(comm), None
        self._is_close = same == "close"
        op = "layout"
        try:
            mesh, roles = find()
            sizes, members = sizes_and_ranks(mesh)
            if members and comm is None:
                whole = _group(whole, members)
            self.mesh = Mesh.of(sizes, roles)
            _check(self.mesh, same, whole.world_size)
            op += f" of {self.mesh}, same={same!r}"
        except (ConfigurationError, InputTypeError) as error:
            problem = Problem.of(error)
        meet(op, comm=whole, problem=problem)
        self._connect(whole)

    def _connect(self, whole: Communicator) -> None:
        """Make the groups that calls need, among the ranks of the mesh."""
        self._whole = whole
        self.me = whole.rank
        self._job = whole.members
        self.inner = self._among(whole, [SHARD])
        shards = self.mesh.along(self.me, self.mesh.axes(SHARD))
        self._members = [self._job[rank] for rank in shards]
        self._alike = self._among(whole, [SAME])
        # On the others a group that is never used: all ranks are in as many, since torch may name
        # a group of the user's by how many there are, and ranks wait for each other by its name.
        self._owners = self._among(whole, [SHARD, SAME])
        self._owns = self.mesh.owns(self.me)
        self._given = _group(whole, self.mesh.along(self.me, self.mesh.owned))
        self._parts: list[Part] | None = None

    def through(self, whole: Communicator) -> layout:
        """Return the same layout over another communicator of the same ranks."""
        twin = copy.copy(self)
        twin._connect(whole)
        return twin

    def background(self) -> layout:
        """Return the same layout, for the background."""
        return self.through(self.whole.background())

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        comm: Communicator | None = None,
        same: str = "exact",
        **roles: str | int,
    ) -> layout:
        """Return the layout of a mesh that a job has already, by the usual names of its axes.

        ``dp``, ``dp_replicate``, ``dp_shard``, ``fsdp``, ``cp``, ``sp`` and ``ep`` hold other
        samples, ``tp`` the same ones, and of ``pp`` the last stage has values.

        Args:
            source: an ``Accelerator`` with a ``parallelism_config``, a ``DeviceMesh``, sizes by
                name, or "megatron", whose ``parallel_state`` is read if it is loaded.
            comm: see :class:`layout`.
            same: see :class:`layout`.
            roles: of axes with other names, or that mean something else here.

        >>> run(4, lambda comm: str(layout.of({"dp": 2, "tp": 2}, comm=comm).mesh))[0]
        'dp 2 shard, tp 2 same'
        """

        def find() -> tuple[Any, dict[str, Any]]:
            mesh, usual = known(source, chosen(comm).rank)
            return mesh, usual | roles

        made = cls.__new__(cls)
        made._make(find, comm, same)
        return made

    def _among(self, whole: Communicator, roles: Iterable[str | int]) -> Communicator:
        return _group(whole, self.mesh.along(self.me, self.mesh.axes(*roles)))

    @property
    def members(self) -> Sequence[int]:
        """The ranks of this rank's shards, as the job numbers them."""
        return self._members

    @property
    def whole(self) -> Communicator:
        """The communicator of all ranks of the mesh."""
        return self._whole

    is_layout = True

    @property
    def wants_proof(self) -> bool:
        """Whether some ranks hold the same samples, which each call proves."""
        return self._parts is not None and bool(self.mesh.axes(SAME))

    @property
    def hands_over(self) -> bool:  # type: ignore[override]
        """True if some ranks are given the result of others."""
        return bool(self.mesh.owned or (self._is_close and self.mesh.axes(SAME)))

    def axes_of(self, job_ranks: Sequence[int]) -> dict[str, str | int]:
        """Return the axes along which some ranks of the job lie, and their roles."""
        ranks = [self._job.index(rank) for rank in job_ranks if rank in self._job]
        places = [self.mesh.place(rank) for rank in ranks]
        roles = self.mesh.roles
        return {axis: roles[axis] for axis in roles if len({place[axis] for place in places}) > 1}

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Pass on to the ranks of this rank's shards."""
        return make(*sent)

    def witness(self, call: bytes, tensors: Mapping[str, Tensor]) -> None:
        """Note what this rank would send in the call that is under way."""
        if self._parts is not None and self.wants_proof:
            self._parts += parts_of(call, tensors)

    def duplicates(self, shards: Sequence[int]) -> LayoutError:
        """Return the error for shards that hold the same data, which would count several times.

        It is told of the first ranks of these shards: ranks that hold the same must agree on it.
        """
        line = self.mesh.along(self.mesh.owners[0], self.mesh.axes(SHARD))
        ranks = [line[shard] for shard in shards]
        places = [self.mesh.place(rank) for rank in ranks]
        axes = [axis for axis in self.mesh.sizes if len({place[axis] for place in places}) > 1]
        named = " and ".join(axes)
        error = LayoutError(
            [
                f'along the axis {named}, said to be of "shard"s, ',
                Ranks(ranks),
                f" hold the same data: it would be counted {len(ranks)} times",
            ],
            notes=["Every rank keeps what it had."],
            do=f'say {axes[0]}="same", or deal the samples out along it.',
            rank=self.me,
            peers=ranks,
        )
        error.call_ranks(self._job)
        return error

    def around(self, make: Callable[[], R]) -> R:
        """Make a call on the ranks that have values; prove that they agree; give it to the rest."""
        if self._parts is not None:  # a part of a call that is under way
            return make()
        self._parts = []
        try:
            if self.mesh.owned:
                enter_layout(self._given, Call("a call over a layout"))
            outcome = Outcome()
            if self._owns:
                if self.mesh.axes(SAME):
                    enter_layout(self._owners, Call("a call over a layout"))
                outcome = self._agreed(Outcome.of(lambda: self._numbered(make)))
            if self.mesh.owned:
                outcome = hand_over(self._given, self._given_by(), outcome)
        finally:
            self._parts = None
        exchanges_over(of_layout=True)
        result: R = outcome.get()
        return result

    def _numbered(self, make: Callable[[], R]) -> R:
        with numbered(self):
            return make()

    def _given_by(self) -> int:
        """Return who gives this rank results, as a rank of those that it gives to."""
        given = self.mesh.along(self.me, self.mesh.owned)
        (src,) = [place for place, rank in enumerate(given) if self.mesh.owns(rank)]
        return src

    def _agreed(self, mine: Outcome) -> Outcome:
        """Return the outcome that all ranks with values have; one of them may be an error."""
        if not self.mesh.axes(SAME):
            return mine
        parts = [*(self._parts or []), *part_of(mine.error)]
        agreed = mine
        if self._is_close:
            agreed = hand_over(self._alike, 0, mine)
            apart = far_apart(agreed.result, mine.result)
            parts = [Part(*each) for each in apart.items()] + part_of(mine.error)
        return Outcome.of(lambda: self._proved(parts, agreed))

    def _proved(self, parts: Sequence[Part], outcome: Outcome) -> Any:
        """Return the result if ranks that should hold the same have the same parts.

        Raises:
            LayoutError: they do not (on every rank that has values).
        """
        owners = self._owners
        mine = share(self.mesh, self.me, str(parts)).to(owners.device)
        take(owners, Call("the proof of a layout"))
        if not owners.all_reduce(mine, "sum").any():
            return outcome.get()
        ranks = gather_messages(owners, Proof(tuple(parts)), Header("parts"), "its parts")
        per_rank = [proof.parts for proof in ranks]
        by_rank = dict(zip(self.mesh.owners, per_rank, strict=True))
        error = refusal(self.mesh, self.me, by_rank)
        error.call_ranks(self._job)
        raise error from outcome.error


def _check(mesh: Mesh, same: str, world_size: int) -> None:
    """Raise ConfigurationError for what a layout cannot be."""
    if same not in _SAMES:
        raise ConfigurationError(f'same={same!r} is none of "exact" and "close"')
    if len(mesh.ranks) != world_size:
        raise ConfigurationError(
            f"a mesh of {mesh} has {len(mesh.ranks)} ranks, and there are {world_size}",
            do="pass sizes whose product is the number of ranks, or comm= of the mesh's ranks.",
        )


def _group(whole: Communicator, ranks: Sequence[int]) -> Communicator:
    """Return a communicator of some ranks of another one, of which this rank is one."""
    if len(ranks) == whole.world_size:
        return whole
    if len(ranks) == 1:
        return SingleCommunicator()
    return whole.subgroup(ranks)

"""A communicator over a mesh: what its axes mean decides who talks to whom."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.header import Header, Problem, agree
from distmetrics.collectives.ops import gather_messages, meet
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.call_lock import exchanges_over, note_left, take, this_call
from distmetrics.comm.communicator import (
    Call,
    Communicator,
    PassingCommunicator,
    SingleCommunicator,
    chosen,
    numbered,
)
from distmetrics.comm.verdict import KINDS, Verdict
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    InputTypeError,
    LayoutError,
    Ranks,
    StateError,
)
from distmetrics.layouts.mesh import SAME, SHARD, Mesh, sizes_and_ranks, usual_roles
from distmetrics.layouts.proof import Proof, far_apart, note, note_error, refusal, share
from distmetrics.message import decode, encode, reading

R = TypeVar("R")
_CALL = Call("a call over a layout")


class _Ended(NamedTuple):
    """How a call has ended on this rank: with a result or an error."""

    result: Any = None
    error: Exception | None = None


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
        whole, problem = chosen(comm), None
        self._is_close = same == "close"
        op = "layout"
        try:
            sizes, members = sizes_and_ranks(mesh, whole.rank)
            if members and comm is None:
                whole = _group(whole, members)
            self.mesh = Mesh.of(sizes, roles)
            _check(self.mesh, same, whole.world_size)
            op += f" of {self.mesh}, same={same!r}"
        except (ConfigurationError, InputTypeError) as error:
            problem = Problem.of(error)
        meet(op, comm=whole, problem=problem)  # ranks that mean other groups would wait in them
        self._connect(whole)

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
        with contextlib.suppress(ConfigurationError, InputTypeError):  # making it tells all ranks
            sizes, _ = sizes_and_ranks(source, chosen(comm).rank)
            roles = usual_roles(sizes) | roles
        return cls(source, comm=comm, same=same, **roles)

    def _connect(self, whole: Communicator) -> None:
        """Make the groups that calls need, among the ranks of the mesh."""
        self._whole = whole
        self.me = whole.rank
        self._job = whole.members
        super().__init__(self._among(self.mesh.axes(SHARD)))
        shards = self.mesh.along(self.me, self.mesh.axes(SHARD))
        self._members = [self._job[rank] for rank in shards]
        self._alike = self._among(self.mesh.axes(SAME))
        # On the others a group that is never used: all ranks are in as many, since torch may name
        # a group of the user's by how many there are, and ranks wait for each other by its name.
        self._owners = self._among(self.mesh.axes(SHARD, SAME))
        self._given = self._among(self.mesh.owned)
        self._digests: dict[str, str] | None = None  # of the call under way

    def _among(self, axes: Iterable[str]) -> Communicator:
        return _group(self._whole, self.mesh.along(self.me, axes))

    def through(self, whole: Communicator) -> layout:
        """Return the same layout over another communicator of the same ranks."""
        twin = copy.copy(self)
        twin._connect(whole)
        return twin

    def background(self) -> layout:
        """Return the same layout, for the background."""
        return self.through(self.whole.background())

    @property
    def members(self) -> Sequence[int]:
        """The ranks of this rank's shards, as the job numbers them."""
        return self._members

    @property
    def whole(self) -> Communicator:
        """The communicator of all ranks of the mesh."""
        return self._whole

    @property
    def hands_over(self) -> bool:  # type: ignore[override]
        """True if some ranks are given the result of others."""
        return bool(self.mesh.owned or (self._is_close and self.mesh.axes(SAME)))

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Pass on to the ranks of this rank's shards."""
        return make(*sent)

    @property
    def wants_proof(self) -> bool:
        """Whether some ranks hold the same samples, which each call proves."""
        return self._digests is not None and bool(self.mesh.axes(SAME))

    def witness(self, call: bytes, tensors: Mapping[str, Tensor]) -> None:
        """Note what this rank would send in the call that is under way."""
        if self._digests is not None:
            note(self._digests, call, tensors)

    def around(self, make: Callable[[], R]) -> R:
        """Make a call on the ranks that have values; prove that they agree; give it to the rest."""
        if self._digests is not None:  # a part of a call that is under way
            return make()
        self._digests, ended = {}, _Ended()
        try:
            if self.mesh.owned:
                take(self._given, _CALL)
            if self.mesh.owns(self.me):
                ended = self._made(make)
            if self.mesh.owned:
                given = self.mesh.along(self.me, self.mesh.owned)
                src = [self.mesh.owns(rank) for rank in given].index(True)
                ended = _hand_over(self._given, src, ended)
        finally:
            self._digests = None
        exchanges_over()
        if ended.error is not None:
            raise ended.error
        result: R = ended.result
        return result

    def _made(self, make: Callable[[], Any]) -> _Ended:
        """Make the call; of its error the other ranks must hear before it is raised."""
        if self.mesh.axes(SAME):
            take(self._owners, _CALL)
        if self._is_close:
            take(self._alike, _CALL)
        lock = this_call()
        takes = lock.takes
        try:
            with numbered(self):
                ended = _Ended(make())
        except Exception as error:
            if not lock.exchanged and not isinstance(error, DistmetricsError):
                if lock.takes > takes:  # others are in the midst of it
                    raise
                note_left(self, error)
            ended = _Ended(error=error)
        except BaseException:
            take(self._given if self.mesh.owned else self._owners, _CALL)  # where others still wait
            raise
        if not self.mesh.axes(SAME):
            return ended
        try:
            return self._proved(ended)
        except Exception as error:  # noqa: BLE001  (raised by around)
            return _Ended(error=error)

    def _proved(self, mine: _Ended) -> _Ended:
        """Return what all ranks with values have ended with; one of them may have an error."""
        digests, ended = self._digests or {}, mine
        if self._is_close:
            ended = _hand_over(self._alike, 0, mine)
            digests = far_apart(ended.result, mine.result)
        if mine.error is not None:
            note_error(digests, mine.error)
        owners, proof = self._owners, Proof(digests)
        take(owners, Call("the proof of a layout"))
        if not owners.all_reduce(share(self.mesh, self.me, proof).to(owners.device), "sum").any():
            return ended
        proofs = gather_messages(owners, proof, Header("parts"), "its parts")
        by_rank = dict(zip(self.mesh.owners, proofs, strict=True))
        error = refusal(self.mesh, self.me, by_rank)
        error.call_ranks(self._job)
        raise error from ended.error

    def axes_of(self, job_ranks: Sequence[int]) -> dict[str, str | int]:
        """Return the axes along which some ranks of the job lie, and their roles."""
        ranks = [self._job.index(rank) for rank in job_ranks if rank in self._job]
        return {axis: self.mesh.roles[axis] for axis in self.mesh.varied(ranks)}

    def duplicates(self, shards: Sequence[int]) -> LayoutError:
        """Return the error for shards that hold the same data, which would count several times.

        It names the first ranks of these shards: ranks that hold the same must agree on it.
        """
        line = self.mesh.along(self.mesh.owners[0], self.mesh.axes(SHARD))
        ranks = [line[shard] for shard in shards]
        axes = self.mesh.varied(ranks)
        error = LayoutError(
            [
                f'along the axis {" and ".join(axes)}, said to be of "shard"s, ',
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


def _check(mesh: Mesh, same: str, world_size: int) -> None:
    """Raise ConfigurationError for what a layout cannot be."""
    if same not in ("exact", "close"):
        raise ConfigurationError(f'same={same!r} is none of "exact" and "close"')
    if len(mesh.ranks) != world_size:
        raise ConfigurationError(
            f"a mesh of {mesh} has {len(mesh.ranks)} ranks, and there are {world_size}",
            do="pass sizes whose product is the number of ranks, or comm= of its ranks.",
        )


def _group(whole: Communicator, ranks: Sequence[int]) -> Communicator:
    """Return a communicator of some ranks of another one, of which this rank is one."""
    if len(ranks) == whole.world_size:
        return whole
    if len(ranks) == 1:
        return SingleCommunicator()
    return whole.subgroup(ranks)


def _told(error: Exception) -> Verdict:
    """Return what ranks without values are told of an error; of a user's class as one of ours."""
    if not isinstance(error, DistmetricsError) or error.code not in KINDS:  # of compute(), say
        what = f"the call failed on the ranks with values: {type(error).__name__}: {error}"
        error = StateError(what)
    return Verdict(
        error.code,  # type: ignore[arg-type]
        error.what,
        error.peers,
        error.per_rank,
        error.likely,
        error.do,
        error.notes,
    )


def _hand_over(comm: Communicator, src: int, mine: _Ended) -> _Ended:
    """Give what rank ``src`` has ended with to all ranks of ``comm``.

    One round if it fits inline, as numbers do; else one more. A result that is not data becomes an
    error on every rank.
    """
    data, body = torch.empty(0, dtype=torch.uint8), b""
    if comm.rank == src and mine.error is None:
        try:
            data = serialize(mine.result)
        except InputTypeError as error:
            what = f"the result, a {type(mine.result).__name__}, cannot be given to ranks without"
            refused = InputTypeError(f"{what} values: {error.what}", rank=src)
            refused.call_ranks(comm.members)
            mine = _Ended(error=refused)
    if comm.rank == src and mine.error is not None:
        body = encode(_told(mine.error))
    with numbered(comm):
        met = exchange(comm, Header("what a layout hands over", body=body), data.to(comm.device))
        agree(met.headers(), comm.rank)
        sent, body = met.move_from(src), met.headers()[src].body
    if comm.rank == src:
        return mine
    with reading("what it hands over", src):
        if body:
            told = decode(Verdict, body, "what it hands over", src)
            return _Ended(error=told.error(comm.members[comm.rank]))
        return _Ended(deserialize(sent))

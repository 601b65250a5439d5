"""A communicator over a mesh: what its axes mean decides who talks to whom."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.header import Header, Problem, agree
from distmetrics.collectives.ops import gather_messages, meet
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import (
    Call,
    Communicator,
    PassingCommunicator,
    SingleCommunicator,
    chosen,
    exchanges_over,
    note_left,
    numbered,
    take,
    this_call,
)
from distmetrics.comm.verdict import KINDS, Verdict
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    InputTypeError,
    LayoutError,
    Ranks,
    StateError,
    in_short,
)
from distmetrics.layouts.mesh import SAME, SHARD, Mesh, sizes_and_ranks, usual_roles
from distmetrics.layouts.proof import ERROR, Proof, far_apart, refusal, share
from distmetrics.message import encode, parse, reading

_NO_DATA = torch.empty(0, dtype=torch.uint8)


class _Ended(NamedTuple):
    """How a call has ended on this rank: with a result or an error."""

    result: Any = None
    error: Exception | None = None
    data: Tensor = _NO_DATA  # the result, where other ranks are given it


class layout(PassingCommunicator):  # noqa: N801  (users call it as a function)
    """Say what the ranks of a mesh hold, once; collectives and metrics over it are then right.

    Args:
        mesh: a ``DeviceMesh`` whose dimensions have names, or sizes by name, such as
            ``{"dp": 4, "tp": 2}``, which number the ranks of ``comm`` row by row.
        comm: the ranks of the mesh; default the current communicator. All of them must make the
            layout, which is a collective.
        same: how ranks with the role "same" are compared: "exact", what they send, bit for bit; or
            "close", their results, which may differ in rounding, and all ranks get the first one's.
        roles: one for each axis.

            - ``"shard"``: ranks hold other samples; they are reduced over.
            - ``"same"``: ranks hold the same samples, which count once. Every call compares them.
            - ``"first"``, ``"last"``, a number: only ranks of that coordinate have values. The
              others get the result, and what they pass does not count.

    Attributes:
        rank: the number of this rank's shard, from 0.
        world_size: the number of shards.
        members: the ranks of these shards, as the job numbers them.
        mesh: axes, sizes and roles.
        whole: the communicator of all ranks of the mesh.

    Raises:
        ConfigurationError: an axis has no role, or sizes and ranks do not go together (on every
            rank).
        InputTypeError: ``mesh`` is no mesh whose axes have names (on every rank).
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
        whole, op, problem = chosen(comm), "layout", None
        try:
            sizes, members = sizes_and_ranks(mesh, whole.rank)
            if members and comm is None:
                whole = _group(whole, members)
            self.mesh = Mesh.of(sizes, roles)
            ranks = len(self.mesh.ranks)
            if ranks != whole.world_size:
                what = f"a mesh of {self.mesh} has {ranks} ranks, and there are {whole.world_size}"
                do = "pass sizes whose product is the number of ranks, or comm= of its ranks."
                problem = Problem("ConfigurationError", what, do)
            if same not in ("exact", "close"):
                what = f'same={same!r} is none of "exact" and "close"'
                problem = Problem("ConfigurationError", what)
            op += f" of {self.mesh}, same={same!r}"
        except (ConfigurationError, InputTypeError) as error:
            problem = Problem.of(error)
        meet(op, comm=whole, problem=problem)  # ranks that mean other groups would wait in them
        self.wants_proof = bool(self.mesh.axes(SAME))
        self._is_close = same == "close" and self.wants_proof
        self.hands_over = bool(self.mesh.owned) or self._is_close
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

        Along ``dp``, ``dp_replicate``, ``dp_shard``, ``fsdp``, ``replicate``, ``shard``, ``cp``,
        ``sp`` and ``ep`` ranks hold other samples, along ``tp`` the same ones, and of ``pp`` the
        last stage has values. Errors are those of :class:`layout`.

        Args:
            source: an ``Accelerator`` with a ``parallelism_config``, a ``DeviceMesh``, sizes by
                name, or "megatron", whose ``parallel_state`` is read if it is loaded.
            comm: as for :class:`layout`.
            same: as for :class:`layout`.
            roles: of axes with other names, or with another role here.

        >>> run(4, lambda comm: str(layout.of({"dp": 2, "tp": 2}, comm=comm).mesh))[0]
        'dp 2 shard, tp 2 same'
        """
        with contextlib.suppress(ConfigurationError, InputTypeError):  # making it tells all ranks
            sizes, _ = sizes_and_ranks(source, chosen(comm).rank)
            roles = usual_roles(sizes) | roles
        return cls(source, comm=comm, same=same, **roles)

    def _connect(self, whole: Communicator) -> None:
        """Make the groups that calls need, among the ranks of the mesh."""
        mesh, me, self.whole = self.mesh, whole.rank, whole
        shards, same = mesh.axes(SHARD), mesh.axes(SAME)

        def among(axes: list[str]) -> Communicator:
            return _group(whole, mesh.along(me, axes))

        super().__init__(among(shards))
        self.state = self.inner.state
        self.members = [whole.members[rank] for rank in mesh.along(me, shards)]
        # On ranks without values groups that are never used: all ranks are in as many, since torch
        # may name a group of the user's by how many there are, and ranks wait for each other by
        # its name.
        self._owners = among(shards + same if same else [])
        self._alike = among(same if self._is_close else [])
        self._given = among(mesh.owned)
        given = mesh.along(me, mesh.owned)
        self._owner = [mesh.owns(rank) for rank in given].index(True)  # of these
        self._is_in_call = False
        self._digests: dict[str, Any] = {}  # of the call

    def through(self, whole: Communicator) -> layout:
        """Return the same layout over another communicator of the same ranks."""
        twin = copy.copy(self)
        twin._connect(whole)
        return twin

    def background(self) -> layout:
        """Return the same layout, for the background."""
        return self.through(self.whole.background())

    def witness(self, call: bytes, tensors: Mapping[str, Tensor]) -> None:
        """Note what this rank would send in the call that is under way."""
        for name, x in {**tensors, "the call": from_bytes(call)}.items():  # which tells least
            # Ranks are compared by it, not guarded from each other; where the processor has no
            # instructions for it, it is still no slower than others.
            digest = self._digests.setdefault(name, hashlib.sha1(usedforsecurity=False))
            digest.update(to_bytes(x.resolve_conj().resolve_neg()))

    def around(self, make: Callable[[], Any]) -> Any:
        """Make a call on the ranks that have values; prove that they agree; give it to the rest."""
        if self._is_in_call:  # a part of it
            return make()
        self._is_in_call, self._digests, ended = True, {}, _Ended()
        try:
            for group in (self._given, self._owners, self._alike):
                take(group, Call("a call over a layout"))
            if self._given.rank == self._owner:
                ended = self._made(make)
            if self.mesh.owned:
                ended = _hand_over(self._given, self._owner, ended)
        finally:
            self._is_in_call = False
        exchanges_over()
        if ended.error is not None:
            raise ended.error
        return ended.result

    def _made(self, make: Callable[[], Any]) -> _Ended:
        """Make the call; of its error the other ranks must hear before it is raised."""
        lock = this_call()
        before = lock.call
        try:
            with numbered(self):
                result = make()
                mine = _Ended(result, data=self._data_of(result) if self.hands_over else _NO_DATA)
        except Exception as error:
            if not lock.exchanged and not isinstance(error, DistmetricsError):
                if lock.call is not before:  # others are in the midst of it
                    raise
                note_left(self, error)
            mine = _Ended(error=error)
        except BaseException:
            lock.exchanged = False  # others still wait
            raise
        try:
            return self._proved(mine)
        except Exception as error:  # noqa: BLE001  (raised by around)
            return _Ended(error=error)

    def _data_of(self, result: Any) -> Tensor:
        """Return the result as data, which alone can be given to other ranks."""
        try:
            return serialize(result)
        except InputTypeError as error:
            what = f"the result cannot be given to other ranks: {error.what}"
            raise InputTypeError(what, rank=self.rank) from error

    def _proved(self, mine: _Ended) -> _Ended:
        """Return what all ranks with values have ended with; one of them may have an error."""
        digests = {name: each.hexdigest() for name, each in self._digests.items()}
        ended = mine
        if self._is_close:
            ended = _hand_over(self._alike, 0, mine)
            digests = far_apart(ended.result, mine.result)
        if mine.error is not None:
            text = getattr(mine.error, "compared", "") or mine.error
            digests[ERROR] = f"{type(mine.error).__name__}: {text}"
        owners, rank, proof = self._owners, self.whole.rank, Proof(digests)
        take(owners, Call("the proof of a layout"))
        if not owners.all_reduce(share(self.mesh, rank, proof).to(owners.device), "sum").any():
            return ended
        proofs = gather_messages(owners, proof, Header("parts"), "its parts")
        error = refusal(self.mesh, rank, dict(zip(self.mesh.owners, proofs, strict=True)))
        error.call_ranks(self.whole.members)
        raise error from ended.error

    def axes_of(self, job_ranks: Sequence[int]) -> dict[str, str | int]:
        """Return the axes along which some ranks of the job lie, and their roles."""
        job = self.whole.members
        ranks = [job.index(rank) for rank in job_ranks if rank in job]
        return {axis: self.mesh.roles[axis] for axis in self.mesh.varied(ranks)}

    def duplicates(self, shards: Sequence[int]) -> LayoutError:
        """Return the error for shards that hold the same data, which would count several times."""
        # The first ranks of these shards: ranks that hold the same must agree on it.
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
            rank=self.whole.rank,
            peers=ranks,
        )
        error.call_ranks(self.whole.members)
        return error


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
        error = StateError(f"the call failed on the ranks with values: {in_short(error)}")
    return Verdict(
        error.code,
        error.what,
        error.peers,
        error.per_rank,
        error.likely,
        error.do,
        error.notes,
    )


def _hand_over(comm: Communicator, src: int, mine: _Ended) -> _Ended:
    """Give what rank ``src`` has ended with to all ranks of ``comm``."""
    given = mine if comm.rank == src else _Ended()
    body = b"" if given.error is None else encode(_told(given.error))
    with numbered(comm):
        header = Header("what a layout hands over", body=body)
        met = exchange(comm, header, given.data.to(comm.device))
        agree(met.headers(), comm.rank)
        sent, body = met.move_from(src), met.headers()[src].body
    if comm.rank == src:
        return mine
    with reading("what it hands over", src):
        if body:
            return _Ended(error=parse(Verdict, body).error(comm.members[comm.rank]))
        return _Ended(deserialize(sent), data=sent)

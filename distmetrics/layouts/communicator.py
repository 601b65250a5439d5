"""A communicator over a mesh: what its axes mean decides who talks to whom."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from distmetrics.collectives.gather import meet
from distmetrics.collectives.manifest import Manifest, Problem
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.background import background
from distmetrics.comm.base import Communicator, Passing, job_ranks
from distmetrics.comm.current import SingleCommunicator, chosen
from distmetrics.comm.one_call import in_one_call
from distmetrics.errors import ConfigurationError, InputTypeError, LayoutError, Ranks
from distmetrics.layouts.close import far_apart
from distmetrics.layouts.hand_over import Outcome, hand_over
from distmetrics.layouts.known import known, sizes_and_ranks
from distmetrics.layouts.mesh import SAME, SHARD, Mesh
from distmetrics.layouts.proof import Part, part_of, parts_of, read_parts, refusal, share

R = TypeVar("R")
_SAMES = ("exact", "close")


class layout(Passing):  # noqa: N801  (users call it as a function)
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
        self.whole = whole
        self.me = whole.rank
        self._job = job_ranks(whole)
        self.inner = self._among(whole, [SHARD])
        shards = self.mesh.along(self.me, self.mesh.axes(SHARD))
        self.members = [self._job[rank] for rank in shards]
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
        return self.through(background(self.whole))

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
    def hands_over(self) -> bool:
        """True if some ranks are given the result of others."""
        return bool(self.mesh.owned or (self._is_close and self.mesh.axes(SAME)))

    def axes_of(self, job_ranks: Iterable[int]) -> dict[str, str | int]:
        """Return the axes along which some ranks of the job lie, and their roles."""
        ranks = [self._job.index(rank) for rank in job_ranks if rank in self._job]
        places = [self.mesh.place(rank) for rank in ranks]
        roles = self.mesh.roles
        return {axis: roles[axis] for axis in roles if len({place[axis] for place in places}) > 1}

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Pass on to the ranks of this rank's shards."""
        return make(*sent)

    def witness(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
        """Note what this rank would send in the call that is under way."""
        if self._parts is not None and self.mesh.axes(SAME):
            self._parts += parts_of(manifest, tensors)

    def refuse_copies(self, shards: Sequence[int]) -> LayoutError:
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
            outcome = Outcome()
            if self._owns:
                outcome = self._agreed(Outcome.of(make))
            if self.mesh.owned:
                src = self._given_by()
                outcome = hand_over(self._given, src, outcome)
            result: R = outcome.get()
            return result
        finally:
            self._parts = None

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
        call = Manifest("the proof of a layout").call
        total = in_one_call(owners, call, lambda: owners.all_reduce(mine, "sum"))
        if not total.any():
            return outcome.get()
        per_rank = gather_objects([[*part] for part in parts], read_parts, owners, "", op="parts")
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
    subgroup = getattr(whole, "subgroup", None)
    if subgroup is None:
        raise ConfigurationError(
            f"a {type(whole).__name__} has no subgroups, which a layout needs",
            do="pass comm= of threads or of a process group.",
        )
    made: Communicator = subgroup(ranks)
    return made

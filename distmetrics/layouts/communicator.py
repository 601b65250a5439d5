"""A communicator over a mesh: what its axes mean decides who talks to whom."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.background import background
from distmetrics.comm.base import Communicator, Passing, job_ranks
from distmetrics.comm.current import SingleCommunicator, chosen
from distmetrics.comm.one_call import in_one_call
from distmetrics.errors import ConfigurationError, InputTypeError, LayoutError, Ranks
from distmetrics.layouts.close import far_apart
from distmetrics.layouts.hand_over import Outcome, hand_over
from distmetrics.layouts.known import known
from distmetrics.layouts.mesh import SAME, SHARD, Mesh
from distmetrics.layouts.proof import ERROR, Part, differences, parts_of, share

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
        if same not in _SAMES:
            raise ConfigurationError(f'same={same!r} is none of "exact" and "close"')
        self._is_close = same == "close"
        whole, sizes = _ranks_and_sizes(mesh, comm)
        self.mesh = Mesh.of(sizes, roles)
        if len(self.mesh.ranks) != whole.world_size:
            raise ConfigurationError(
                f"a mesh of {self.mesh} has {len(self.mesh.ranks)} ranks, and there are "
                f"{whole.world_size}",
                do="pass sizes whose product is the number of ranks, or comm= of the mesh's ranks.",
            )
        self._connect(whole)
        self._parts: list[Part] | None = None

    def _connect(self, whole: Communicator) -> None:
        """Make the groups that calls need, among the ranks of the mesh."""
        self.whole = whole
        self.me = whole.rank
        self._job = job_ranks(whole)
        self.inner = self._among(whole, [SHARD])
        shards = self.mesh.along(self.me, self.mesh.axes(SHARD))
        self.members = [self._job[rank] for rank in shards]
        self._alike = self._among(whole, [SAME])
        self._owns = self.mesh.owns(self.me)
        owners = self.mesh.owners
        self._owners = _group(whole, owners) if self._owns else None
        self._given = _group(whole, self.mesh.along(self.me, self.mesh.owned))

    def background(self) -> layout:
        """Return the same layout, for the background."""
        twin = copy.copy(self)
        twin._connect(background(self.whole))
        return twin

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
        mesh, usual = known(source, chosen(comm).rank)
        return cls(mesh, comm=comm, same=same, **(usual | roles))

    def _among(self, whole: Communicator, roles: Iterable[str | int]) -> Communicator:
        return _group(whole, self.mesh.along(self.me, self.mesh.axes(*roles)))

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
        parts = [*(self._parts or []), *_part_of(mine.error)]
        agreed = mine
        if self._is_close:
            agreed = hand_over(self._alike, 0, mine)
            apart = far_apart(agreed.result, mine.result)
            parts = [Part(*each) for each in apart.items()] + _part_of(mine.error)
        return Outcome.of(lambda: self._proved(parts, agreed))

    def _proved(self, parts: Sequence[Part], outcome: Outcome) -> Any:
        """Return the result if ranks that should hold the same have the same parts.

        Raises:
            LayoutError: they do not (on every rank that has values).
        """
        owners = self._owners
        assert owners is not None
        mine = share(self.mesh, self.me, str(parts)).to(owners.device)
        call = Manifest("the proof of a layout").call
        total = in_one_call(owners, call, lambda: owners.all_reduce(mine, "sum"))
        if not total.any():
            return outcome.get()
        per_rank = gather_objects([[*part] for part in parts], _read, owners, "", op="parts")
        by_rank = dict(zip(self.mesh.owners, per_rank, strict=True))
        refusal = _refusal(self.mesh, self.me, by_rank)
        refusal.call_ranks(self._job)
        raise refusal from outcome.error


def _part_of(error: Exception | None) -> list[Part]:
    if error is None:
        return []
    text = getattr(error, "compared", "") or str(error)
    return [Part(ERROR, f"{type(error).__name__}: {text}")]


def _read(told: Any) -> list[Part]:
    """Return what a peer would send; raise anything for what is none."""
    return [Part(str(name), str(digest)) for name, digest in told]


def _refusal(mesh: Mesh, rank: int, parts: Mapping[int, Sequence[Part]]) -> LayoutError:
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


def _ranks_and_sizes(mesh: Any, comm: Communicator | None) -> tuple[Communicator, dict[str, int]]:
    """Return who the ranks of a mesh are, and its sizes by axis."""
    if isinstance(mesh, Mapping):
        return chosen(comm), dict(mesh)
    names = getattr(mesh, "mesh_dim_names", None)
    ranks = getattr(mesh, "mesh", None)
    if not names or ranks is None:
        raise InputTypeError(
            f"a {type(mesh).__name__} is no mesh whose axes have names",
            do='pass sizes by name, {"dp": 4, "tp": 2}, or a DeviceMesh made with mesh_dim_names=.',
        )
    sizes = dict(zip(names, ranks.shape, strict=True))
    members = ranks.flatten().tolist()
    if members != sorted(members):
        raise ConfigurationError(
            f"the ranks of this DeviceMesh do not ascend: {members}",
            do="make it by init_device_mesh.",
        )
    return _group(chosen(comm), members) if comm is None else comm, sizes


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

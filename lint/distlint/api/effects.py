"""What a call or an attribute is to a distributed job."""

from __future__ import annotations

from typing import NamedTuple


class Effect(NamedTuple):
    """What a call or an attribute is.

    Attributes:
        kind: collective | rank | local_rank | world | zero | local_zero | distributed | log | backward | save |
            loader | sampler | wrap | metric | trainer | tensor | move | list_files | clock | share | setup |
            grow | place | put | reduced | replicate | update.
        label: what it is called in messages and by what collectives are matched; of what tells of an axis of a mesh
            (rank, zero, last, group, mesh), the axis.
        changes: positions of arguments that it changes in place, so that all ranks have the same afterwards.
        returns: "" nothing that is known | "same" on all ranks | "gathered" | "local".
        group: position of the process group among the arguments; -1 where it has none.
        sharded: whether only strategies that shard states (FSDP, DeepSpeed) make it wait for all ranks.
        grads: whether gradients flow through a collective to the other ranks.
        wrapped: "ddp", "fsdp" or "prepared": what a wrapper makes of a model, or what this is a pass of; "prepared"
            where a framework decides, "maybe" where a caller does.
    """

    kind: str
    label: str = ""
    changes: tuple[int, ...] = ()
    returns: str = ""
    group: int = -1
    sharded: bool = False
    wrapped: str = ""
    grads: bool = False


def collective(label: str, returns: str = "same", changes: tuple[int, ...] = (), group: int = -1) -> Effect:
    """Return the effect of a call that every rank has to make."""
    return Effect("collective", label, changes, returns, group)

"""What ``doctor`` compares between ranks: versions, machines, GPUs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from distmetrics.cli.doctor_finding import Finding, Status
from distmetrics.cli.doctor_machine import Gpu
from distmetrics.errors import compose, who

_MUST_AGREE = ("torch", "distmetrics")  # what talks to itself on the other ranks
_SLOW_CONNECT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a rank tells the others of itself.

    Attributes:
        findings: of the checks of its machine.
        host: the name of its machine.
        boot: tells machines of the same name apart.
        local_rank: its place there, as the launcher says.
        local_world_size: the number of ranks there, as the launcher says.
        versions: of Python and packages.
        backends: of ``torch.distributed`` that it has.
        gpus: those that it sees.
        gpu: the one that is its own.
        waited: seconds that it waited for the others to come.
        connected: seconds in which the group was made then.
    """

    findings: tuple[Finding, ...] = ()
    host: str = "localhost"
    boot: str = ""
    local_rank: int = 0
    local_world_size: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ("gloo",)
    gpus: tuple[Gpu, ...] = ()
    waited: float = 0.0
    connected: float = 0.0

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that a script takes by its local rank."""
        return self.gpus[self.local_rank % len(self.gpus)] if self.gpus else None


def compared(facts: Sequence[Facts], backend: str) -> list[Finding]:
    """Compare the ranks; ``backend``: "auto", "gloo" or "nccl"."""
    return [rendezvous(facts), same_versions(facts), machines(facts), devices(facts, backend)]


def rendezvous(facts: Sequence[Facts]) -> Finding:
    """Tell how long it took until all ranks had come, and until they were connected."""
    longest = max(fact.waited for fact in facts)
    last = min(range(len(facts)), key=lambda rank: facts[rank].waited)
    connected = max(fact.connected for fact in facts)
    came = (
        f"{len(facts)} ranks came within {longest:.1f} s, rank {last} last"
        if len(facts) > 1
        else "one rank"
    )
    said = f"{came}; connected in {connected:.1f} s"
    numbers = {"waited_s": longest, "connected_s": connected}
    if connected >= _SLOW_CONNECT:
        do = "see what is said of names; a name server that does not answer costs 5 s for each connection."
        return Finding("rendezvous", "warn", said, do, (), numbers)
    return Finding("rendezvous", "ok", said, numbers=numbers)


def same_versions(facts: Sequence[Facts]) -> Finding:
    """Compare versions: those of torch and of distmetrics must be the same, others should."""
    names = dict.fromkeys(name for fact in facts for name in fact.versions)
    differ = [name for name in names if len({fact.versions.get(name) for fact in facts}) > 1]
    if not differ:
        return Finding("same versions", "ok", "all ranks have the same")
    lines = {
        rank: ", ".join(f"{name} {fact.versions.get(name, 'is not there')}" for name in differ)
        for rank, fact in enumerate(facts)
    }
    text = compose(f"ranks have different versions of {', '.join(differ)}", lines)
    status: Status = "fail" if set(differ) & set(_MUST_AGREE) else "warn"
    return Finding("same versions", status, text, "install the same versions on all machines.")


def machines(facts: Sequence[Facts]) -> Finding:
    """Compare where ranks are with what the launcher says of it."""
    hosts = _groups(facts, _where)
    said = (
        f"{len(facts)} rank{'s' * (len(facts) > 1)} on {len(hosts)} machine{'s' * (len(hosts) > 1)}"
    )
    twice = _groups(facts, lambda fact: (_where(fact), fact.local_rank))
    clash = [ranks for ranks in twice.values() if len(ranks) > 1]
    do = "set LOCAL_RANK and LOCAL_WORLD_SIZE for each machine; torchrun does."
    if clash:
        local = facts[clash[0][0]].local_rank
        what = f"{who(clash[0])} are all local rank {local} of {facts[clash[0][0]].host}, as if they shared a GPU"
        return Finding("machines", "warn", f"{said}; {what}", do)
    wrong = {
        rank: fact
        for rank, fact in enumerate(facts)
        if fact.local_world_size != len(hosts[_where(fact)])
    }
    if wrong:
        rank, fact = next(iter(wrong.items()))
        what = (
            f"{said}; rank {rank} is told of {fact.local_world_size} on {fact.host}, and there are "
        )
        return Finding("machines", "warn", f"{what}{len(hosts[_where(fact)])}", do)
    return Finding("machines", "ok", said)


def chosen_backend(facts: Sequence[Facts], asked: str) -> str:
    """Return the backend whose speed is measured: NCCL where each rank has a GPU to itself."""
    own = {fact.gpu.uuid for fact in facts if fact.gpu is not None}
    able = len(own) == len(facts) and all("nccl" in fact.backends for fact in facts)
    return "nccl" if able and asked != "gloo" else "gloo"


def devices(facts: Sequence[Facts], backend: str) -> Finding:
    """See whether each rank has a GPU to itself, if there are GPUs."""
    with_gpu = [rank for rank, fact in enumerate(facts) if fact.gpu is not None]
    without = [rank for rank in range(len(facts)) if rank not in with_gpu]
    if backend == "nccl" and any("nccl" not in fact.backends for fact in facts):
        which = who(rank for rank, fact in enumerate(facts) if "nccl" not in fact.backends)
        what = f"nccl is asked for, and torch of {which} has none"
        return Finding(
            "devices", "fail", what, "install a build of torch that has it, or use gloo."
        )
    if not with_gpu:
        if backend == "nccl":
            do = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use gloo."
            return Finding("devices", "fail", "nccl is asked for, and no rank sees a GPU", do)
        return Finding("devices", "ok", "no GPU: gloo, on the processors")
    if without:
        what = f"{who(without)} {'sees' if len(without) == 1 else 'see'} no GPU, and {who(with_gpu)} do"
        do = "see nvidia-smi there, CUDA_VISIBLE_DEVICES, and what the scheduler was asked for."
        return Finding("devices", "fail" if backend != "gloo" else "warn", what, do)
    shared = [
        ranks
        for ranks in _groups(facts, lambda fact: fact.gpu and fact.gpu.uuid).values()
        if len(ranks) > 1
    ]
    if shared:
        said = [f"{who(ranks)} are all on {_name(facts[ranks[0]])}" for ranks in shared]
        do = "start no more ranks on a machine than it has GPUs, and let each see its own or take cuda:LOCAL_RANK."
        return Finding("devices", "fail" if backend != "gloo" else "warn", "\n".join(said), do)
    kinds = _groups(facts, lambda fact: fact.gpu and fact.gpu.name)
    if chosen_backend(facts, backend) == "gloo":
        why = "gloo is asked for" if backend == "gloo" else "this torch has no nccl"
        what = f"each rank has a GPU, and {why}: tensors go through the processors' memory, slowly"
        return Finding(
            "devices", "warn", what, "use nccl for tensors on GPUs: backend='cpu:gloo,cuda:nccl'."
        )
    if len(kinds) > 1:
        said = [f"{who(ranks)}: {name}" for name, ranks in kinds.items()]
        return Finding(
            "devices",
            "warn",
            "GPUs differ\n" + "\n".join(said),
            "expect all to wait for the slowest.",
        )
    return Finding(
        "devices", "ok", f"nccl, a GPU of its own for each rank: {', '.join(map(str, kinds))}"
    )


def _name(fact: Facts) -> str:
    assert fact.gpu is not None
    return f"one GPU, {fact.gpu.name} {fact.gpu.uuid} of {fact.host}"


def _where(fact: Facts) -> tuple[str, str]:
    return fact.host, fact.boot


def _groups(facts: Sequence[Facts], key: Callable[[Facts], Hashable]) -> dict[Hashable, list[int]]:
    """Return the ranks by what ``key`` says of them."""
    found: dict[Hashable, list[int]] = {}
    for rank, fact in enumerate(facts):
        found.setdefault(key(fact), []).append(rank)
    return found

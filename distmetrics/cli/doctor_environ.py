"""The checks of ``doctor`` that read environment variables: who launched this process, and what
contradicts what.
"""

from __future__ import annotations

from collections.abc import Mapping

from distmetrics.cli.doctor_checks import SLOW_LOOKUP, is_loopback
from distmetrics.cli.doctor_finding import Finding, of_error
from distmetrics.cli.doctor_machine import Machine
from distmetrics.errors import ConfigurationError
from distmetrics.launch.clusters import OWN_STORE
from distmetrics.launch.environment import detect
from distmetrics.launch.place import Environment
from distmetrics.liveness.settings import Settings

_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_WHO = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
)  # that a process is one of a job; an address alone does not say so
_UNSET = f"start the job by torchrun, or set all of {', '.join(_TORCH)}, or unset them."
_LARGEST_PORT = 65535


def launcher(environ: Mapping[str, str]) -> tuple[Environment | None, Finding]:
    """Find out who launched this process; None where nobody did, or where the variables make no
    sense.
    """
    if OWN_STORE in environ:
        what = f"{OWN_STORE} is set, as for the ranks that distmetrics starts, and this process is none of them"
        return None, Finding("launcher", "fail", what, f"unset {OWN_STORE}, RANK and WORLD_SIZE.")
    try:
        found = detect(environ)
    except ConfigurationError as error:
        return None, of_error("launcher", error)
    if found is None:
        half = [name for name in _WHO if name in environ]
        if half:
            missing = [name for name in ("RANK", "WORLD_SIZE") if name not in environ]
            what = f"{_and(half)} {_is(half)} set, but {_and(missing)} {_is(missing)} not: who started this process?"
            return None, Finding("launcher", "fail", what, _UNSET)
        return None, Finding("launcher", "ok", "no launcher: this process is on its own")
    where = (
        f"{found.main_address}:{found.main_port}"
        if found.main_address
        else "an address that MPI tells"
    )
    here = f"{found.local_world_size} on this machine, rank 0 at {where}"
    return found, Finding(
        "launcher", "ok", f"{found.launcher} says {found.world_size} ranks, {here}"
    )


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def uses_agent(environ: Mapping[str, str]) -> bool:
    """Whether torchrun's agent hosts the store of the job, and not rank 0."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def main_address(
    environ: Mapping[str, str], found: Environment | None, machine: Machine
) -> Finding:
    """Look up where rank 0 is reached, from every rank."""
    address = found.main_address if found is not None else environ.get("MASTER_ADDR", "")
    if not address:
        return Finding("main address", "ok", "not set, and not needed")
    name = (
        f"MASTER_ADDR={address}"
        if environ.get("MASTER_ADDR") == address
        else f"rank 0's machine {address}"
    )
    answer = machine.lookup(address)
    if answer.problem:
        do = "set MASTER_ADDR to a name or address of rank 0's machine that all of them know."
        return Finding("main address", "fail", f"{name} does not resolve: {answer.problem}", do)
    several = found is not None and found.local_world_size < found.world_size
    if several and all(map(is_loopback, answer.addresses)):
        do = "set MASTER_ADDR to the address of rank 0's machine in the network of all of them."
        what = f"{name} is the loopback address, and the job is on several machines"
        return Finding("main address", "fail", what, do)
    if found is not None and found.rank == 0 and not uses_agent(environ):
        foreign = [why for each in answer.addresses if (why := machine.listen(each, 0))]
        if len(foreign) == len(answer.addresses):
            do = "set MASTER_ADDR to rank 0's machine, unless a proxy passes its connections on."
            what = f"{name} is no address of rank 0's machine {machine.host}: {foreign[0]}"
            return Finding("main address", "warn", what, do)
    said = f"{name} resolves to {', '.join(answer.addresses)}"
    if answer.seconds >= SLOW_LOOKUP:
        slow = f"{said}, after {answer.seconds:.1f} s: each connection to it waits for that"
        return Finding(
            "main address", "warn", slow, "mend the name server, or set MASTER_ADDR to an address."
        )
    return Finding("main address", "ok", said, numbers={"seconds": answer.seconds})


def main_port(environ: Mapping[str, str], found: Environment | None, machine: Machine) -> Finding:
    """See whether the port of rank 0 is one, and free where rank 0 is to listen on it."""
    text = environ.get("MASTER_PORT")
    if text is None and (found is None or found.main_port > 0):
        return Finding(
            "main port", "ok", "not set, and not needed" if found is None else f"{found.main_port}"
        )
    do = "set MASTER_PORT to a free port from 1024 on, the same on all ranks; or start the job by torchrun."
    if text is None:
        return Finding(
            "main port", "fail", "MASTER_PORT is not set: ranks cannot find each other", do
        )
    if not text.strip().isdecimal() or not 0 < int(text) <= _LARGEST_PORT:
        return Finding("main port", "fail", f"MASTER_PORT={text!r} is no port", do)
    if found is not None and found.rank == 0 and found.main_address and not uses_agent(environ):
        if why := machine.listen("", int(text)):
            likely = "another job, or another process that also says it is rank 0, has it"
            return Finding(
                "main port",
                "fail",
                f"rank 0 can't listen on MASTER_PORT={text}: {why}; {likely}",
                do,
            )
        return Finding("main port", "ok", f"{text}, free on rank 0's machine")
    return Finding("main port", "ok", text)


def threads(environ: Mapping[str, str], found: Environment | None, machine: Machine) -> Finding:
    """Compare the threads of all processes of this machine with its cores."""
    text, processes = environ.get("OMP_NUM_THREADS"), 1 if found is None else found.local_world_size
    fair = max(1, machine.cores // processes)
    here = f"{processes} process{'es' if processes > 1 else ''} on {machine.cores} core{'s' * (machine.cores > 1)}"
    if text is None:
        if processes == 1:
            return Finding(
                "threads", "ok", f"OMP_NUM_THREADS is not set: all {machine.cores} cores are used"
            )
        what = f"OMP_NUM_THREADS is not set, and each of {processes} processes takes all {machine.cores} cores"
        return Finding("threads", "warn", what, f"export OMP_NUM_THREADS={fair}.")
    first = text.split(",")[0].strip()  # a list is for nested regions
    if not first.isdecimal() or int(first) < 1:
        return Finding(
            "threads",
            "fail",
            f"OMP_NUM_THREADS={text!r} is no number of threads",
            f"set it to {fair}.",
        )
    said = f"OMP_NUM_THREADS={text}: {here}"
    if int(first) * processes > machine.cores:
        what = f"{said}, so {int(first) * processes} threads share them, and wait for each other"
        do = (
            f"export OMP_NUM_THREADS={fair}."
            if processes <= machine.cores
            else "start fewer processes here."
        )
        return Finding("threads", "warn", what, do)
    return Finding("threads", "ok", said)


def settings(environ: Mapping[str, str]) -> Finding:
    """Look at variables that make a job slow, or that have values which nothing understands."""
    wrong: list[tuple[str, str]] = []
    slow: list[tuple[str, str]] = []
    for name in ("DISTMETRICS_GUARD", "DISTMETRICS_TIMEOUT"):
        try:
            Settings.of_environment({name: environ.get(name, "")})
        except ConfigurationError as error:
            what, _, do = str(error).partition("\nDo:")
            wrong.append((what, do.strip()))
    if environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        what = "TORCH_DISTRIBUTED_DEBUG=DETAIL checks each collective by others: slow"
        slow.append((what, "unset TORCH_DISTRIBUTED_DEBUG once the job works."))
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        what = "CUDA_LAUNCH_BLOCKING is set: the processor waits for each kernel"
        slow.append((what, "unset CUDA_LAUNCH_BLOCKING once the job works."))
    if not wrong and not slow:
        return Finding(
            "settings", "ok", "no variable that slows a job down or that nothing understands"
        )
    said, does = zip(*wrong, *slow, strict=True)
    return Finding("settings", "fail" if wrong else "warn", "\n".join(said), " ".join(does))

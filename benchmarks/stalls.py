"""Which torchmetrics classes wait for their device in ``update``, and which can be compiled.

    python -m benchmarks.stalls                      # one construction a class, written
    python -m benchmarks.stalls --only 'AUROC|Mean'  # a part, printed only

Each class is updated with the conformance benchmark's batches, first as it is constructed, then
with ``validate_args=False`` where it has that. No device is needed: stalls are counted as
``tests/stall_counter.py`` does, and what is compiled is traced on the meta device, since
many classes have other code for the CPU. "Compiles" means that seven updates run under
``torch.compile(metric.update, fullgraph=True)`` without being compiled anew each time, with
``torch._dynamo.config.allow_unspec_int_on_nn_module = True``: else the number of updates, which
every metric counts, makes each a new program, and the ninth an error. Needs the extra
``bench-conformance``, for the classes that need more than torchmetrics.
"""

from __future__ import annotations

import argparse
import copy
import csv
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from benchmarks.conformance.__main__ import facts
from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue import cases, find
from benchmarks.conformance.pool import World
from benchmarks.conformance.ranks import Ended, missing
from distmetrics.testing.equality import EXACT
from tests.stall_counter import Stall, stalls

RESULTS = Path(__file__).parent / "results"
LIMIT = 240.0  # seconds for a class
UPDATES = 7  # of a compiled metric
PROGRAMS = 4  # that they may take: the number of updates is a variable from the second one on
_LONG = 120


@dataclass(frozen=True)
class Row:
    """What one class does.

    Attributes:
        name: the class.
        group: torchmetrics' subpackage.
        checks: whether it has ``validate_args``.
        stalls: of one update; ``lines``: where; of them ``unchecked`` with validate_args=False.
        compiles: "" if updates can be compiled on a device, or why not; ``compiles_unchecked``:
            with validate_args=False.
        on_cpu: the same of the CPU's code, unchecked, and whether the states are equal then.
        error: why nothing is known.
    """

    name: str
    group: str
    checks: bool = False
    stalls: int = 0
    lines: str = ""
    unchecked: int = 0
    lines_unchecked: str = ""
    compiles: str = ""
    compiles_unchecked: str = ""
    on_cpu: str = ""
    error: str = ""


def made(case: Case, *, checks: bool) -> Any:
    """Return a metric of its own, with or without the checks of its arguments."""
    metric = copy.deepcopy(case.make())  # cases share networks
    for module in metric.modules():
        if not checks and hasattr(module, "validate_args"):
            module.validate_args = False
    return metric


def updates(case: Case) -> list[Batch]:
    """Return batches: more than programs."""
    found: list[Batch] = []
    generator = torch.Generator().manual_seed(0)
    while len(found) < UPDATES:
        batch = case.batch(generator, 4)
        found += batch if isinstance(batch, list) else [batch]
    return found[:UPDATES]


def waits(case: Case, given: Sequence[Batch], *, checks: bool) -> list[Stall]:
    """Return the stalls of a second update: the first one may set up."""
    metric = made(case, checks=checks)
    for batch in given[:2]:
        found = stalls(metric.update, *batch.args, **batch.kwargs)
    # Networks that cases bring along stand in for ones that would be downloaded.
    return [each for each in found if each.site and not each.site.file.startswith("benchmarks")]


def compiled(case: Case, given: Sequence[Batch], *, checks: bool) -> str:
    """Return why updates cannot be compiled whole, and once for all, or "" if they can.

    What has no implementation on the meta device is judged by the CPU.
    """
    why = compiled_on("meta", case, given, checks=checks)
    on_cpu = why.startswith("NotImplementedError")
    return compiled_on("cpu", case, given, checks=checks) if on_cpu else why


def compiled_on(device: str, case: Case, given: Sequence[Batch], *, checks: bool) -> str:
    """Return why updates on a device cannot be compiled, or "" if they can."""
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]
    whole, plain = made(case, checks=checks).to(device), made(case, checks=checks)
    update: Any = torch.compile(whole.update, fullgraph=True, backend="eager")
    try:
        for batch in given:
            args, kwargs = tree_map_only(Tensor, lambda x: x.to(device), (batch.args, batch.kwargs))
            update(*args, **kwargs)
            if device == "cpu":
                plain.update(*batch.args, **batch.kwargs)
    except Exception as error:  # noqa: BLE001  (told in the row)
        return short(error)
    if device == "cpu":
        difference = EXACT.difference(dict(plain.metric_state), dict(whole.metric_state))
        return f"another state: {difference}" if difference else ""
    return ""


def short(error: BaseException) -> str:
    """Return the first line of an error, and the operation or the name that it is about."""
    if type(error).__name__ == "FailOnRecompileLimitHit":
        return "compiled anew for each update"
    text = str(error).strip()
    first = text.partition("\n")[0]
    about = re.search(r"Explanation: ([^\n]*)", text)
    said = f"{first}: {about[1]}" if about else f"{type(error).__name__}: {first}"
    return said if len(said) < _LONG else f"{said[:_LONG]}…"


def judge(name: str) -> dict[str, Any]:
    """Judge one class, in the process that was asked to."""
    warnings.simplefilter("ignore")  # of small samples, which these are
    case = find(name)
    given = updates(case)
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    torch._dynamo.config.recompile_limit = PROGRAMS
    checks = any(hasattr(module, "validate_args") for module in case.make().modules())
    first = waits(case, given, checks=True)
    again = waits(case, given, checks=False) if checks else first
    why = compiled(case, given, checks=True)
    why_unchecked = compiled(case, given, checks=False) if checks and why else why
    return {
        "checks": checks,
        "stalls": sum(each.count for each in first),
        "lines": "; ".join(map(str, first)),
        "unchecked": sum(each.count for each in again),
        "lines_unchecked": "; ".join(map(str, again)),
        "compiles": why,
        "compiles_unchecked": why_unchecked,
        "on_cpu": why_unchecked or compiled_on("cpu", case, given, checks=False),
    }


def rows(chosen: Sequence[Case]) -> Iterator[Row]:
    """Yield what each class does."""
    with World(1, group=False, limit=LIMIT) as world:
        for case in chosen:
            answer = world.ask(missing, case.name)[0]
            found = answer or world.ask(judge, case.name)[0]
            if isinstance(found, dict):
                yield Row(case.name, case.group, **found)
            else:
                why = found.text if isinstance(found, Ended) else str(found)
                yield Row(case.name, case.group, error=why)


def table(found: Sequence[Row]) -> str:
    """Return what is shown of the rows: by subpackage, and the classes that stay."""
    known = [row for row in found if not row.error]
    head = "| | classes | stall | with validate_args=False | compile | with validate_args=False |"
    lines = [head, "|---|---|---|---|---|---|"]
    for group in [*dict.fromkeys(row.group for row in known), "all"]:
        mine = [row for row in known if group in (row.group, "all")]
        numbers = [
            len(mine),
            sum(row.stalls > 0 for row in mine),
            sum(row.unchecked > 0 for row in mine),
            sum(not row.compiles for row in mine),
            sum(not row.compiles_unchecked for row in mine),
        ]
        lines.append(f"| {group} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def page(found: Sequence[Row], told: dict[str, str]) -> str:
    """Return the results as a page."""
    parts = ["# Stalls", (__doc__ or "").rpartition("\n\n")[2].strip()]
    parts.append("\n".join(f"- {key}: {value}" for key, value in told.items()))
    parts.append(table(found))
    parts.append(
        "Stalls of one update of 4 samples, as constructed and with validate_args=False. "
        "Why a class is not compiled, and the lines that wait, are told of the latter."
    )
    lines = ["| class | stalls | unchecked | compiles | unchecked | why not | lines |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in found:
        if row.error:
            lines.append(f"| `{row.name}` | not judged: {row.error} | | | | | |")
            continue
        can = ["no" if why else "yes" for why in (row.compiles, row.compiles_unchecked)]
        said = (row.stalls, row.unchecked, *can, row.compiles_unchecked, row.lines_unchecked)
        lines.append(f"| `{row.name}` | {' | '.join(map(str, said))} |")
    parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Run, print, and write if everything was run."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--only", default="", help="classes whose name matches")
    args = ask.parse_args()
    firsts = {case.kind: case for case in reversed(cases().values())}
    chosen = [case for kind, case in reversed(firsts.items()) if re.search(args.only, kind)]
    start = time.monotonic()
    found = []
    for row in rows(chosen):
        found.append(row)
        print(row, flush=True)
    if not args.only:
        with (RESULTS / "stalls.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, found))
        told = facts("benchmarks.stalls", time.monotonic() - start)
        (RESULTS / "stalls.md").write_text(page(found, told))
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

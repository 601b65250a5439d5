"""Random scripts of a training log, on many ranks, against exact sums of rational numbers.

A script has names of every kind, ranks that log other names or nothing, windows of any length,
flushes in the background, logs that are saved and loaded in between, meshes with ``same`` and
``last`` axes, and faults: a name of two kinds, a ``same`` that is not, a negative weight, text.

    python -m benchmarks.log_scripts                     # writes results/log_scripts.json
    python -m benchmarks.log_scripts --threads 1000 --gloo 0
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import distmetrics as dm
from benchmarks.common import parser, write_json
from benchmarks.log_scripts_cases import (
    MESHES,
    Call,
    Script,
    Window,
    can_fail,
    elements,
    grouped,
    judge,
    same_of,
    scripts,
    shown,
)
from distmetrics.layouts.mesh import Mesh
from distmetrics.testing import outcomes, run

Verdict = tuple[str, list[str], Counter[str]]  # how it ended, what is wrong, what was compared


def note(log: dm.Log, calls: Sequence[Call], kind: str) -> None:
    """Log values of one kind, and of one weight: one by itself, several by their names."""
    options: dict[str, Any] = {}
    values = {call.name: shown(call, kind) for call in calls}
    name, value = next(iter(values.items()))
    if kind in ("mean", "mean[3]", "std"):
        is_tensor = calls[0].form in ("float64", "one")
        weight = calls[0].weight
        options["weight"] = torch.tensor(weight, dtype=torch.float64) if is_tensor else weight
        if all(call.form == "list" for call in calls):  # one weight of each element
            options["weight"] = [weight] * len(value)
    method = getattr(log, kind.partition("[")[0])
    if len(values) == 1:
        method(name, value, **options)
    else:
        method(values, **options)


def do_wrong(log: dm.Log, fault: str, shard: int, last: int) -> None:
    """Log what is wrong on the last shard, or between it and the first."""
    name = f"odd {fault}"
    if fault == "kinds" and shard in (0, last):
        (log.max if shard else log.min)(name, 1.0)
    if fault == "same" and shard in (0, last):
        log.same(name, shard)
    if shard != last:
        return
    if fault == "own kinds":
        log.sum(name, 1.0)
        log.max(name, 1.0)
    elif fault == "weight":
        log.mean(name, 1.0, weight=-1.0)
    elif fault == "weight on a device":
        log.mean(name, 1.0, weight=torch.tensor(math.nan))
    elif fault == "text":
        log.sum(name, "many")  # type: ignore[arg-type]


class Player:
    """One rank that plays a script."""

    def __init__(self, comm: Any, script: Script) -> None:
        self.rank, self.shards, self.shard = comm.rank, script.ranks, comm.rank
        self.comm, self.owns, self.script = comm, True, script
        if script.mesh:
            sizes, roles = MESHES[script.mesh]
            mesh = Mesh.of(sizes, roles)
            self.comm = dm.layout(sizes, comm=comm, **roles)
            self.shards, self.shard = 2, mesh.place(comm.rank)["dp"]
            self.owns = mesh.owns(comm.rank)
        self.log = dm.Log(self.comm)
        self.rows: dict[int, Any] = {}
        self.handles: dict[int, Any] = {}

    def play(self) -> list[tuple[int, Any]]:
        """Return what each window has given: its row, or the text of its error."""
        for place, window in enumerate(self.script.windows):
            self._note(window)
            fails = can_fail(window.fault, self.shards)
            if window.waits or fails:
                self._flush(place, window)
            else:
                self.handles[place] = self.log.flush(wait=False)
            if fails and window.fault == "kinds":  # no flush of this log will be right
                break
            if fails and window.fault == "same" and self.shard in (0, self.shards - 1):
                self.log.same("odd same", 5.0)
            self._ask(all_of=False)
        else:
            self._flush(len(self.script.windows), None)
        self._ask(all_of=True)
        return sorted(self.rows.items())

    def _note(self, window: Window) -> None:
        calls = window.calls[self.shard] if self.owns else []
        kinds = self.script.kinds
        for group in grouped(calls, kinds) if window.grouping else [[call] for call in calls]:
            note(self.log, group, kinds[group[0].name])
        for name in {call.name for call in calls if kinds[call.name] == "same"}:
            self.log.same(name, same_of(name))
        for name in {call.name for call in calls if kinds[call.name] == "same[3]"}:
            self.log.same(name, elements(same_of(name)))
        if self.shard in window.reloading:
            state = self.log.state_dict()
            self.log = dm.Log(self.comm)
            self.log.load_state_dict(state)
        if self.owns:
            do_wrong(self.log, window.fault, self.shard, self.shards - 1)

    def _flush(self, place: int, window: Window | None) -> None:
        """Flush, at once or in the background, where the next flush raises what nobody asked."""
        try:
            if window is None or window.waits:
                self.rows[place] = self.log.flush()
                return
            handle = self.log.flush(wait=False)
            self.rows[place] = handle.result() if self.script.own % 2 else self.log.flush()
        except (dm.MismatchError, dm.InputError, dm.LayoutError) as error:
            self.rows[place] = f"{type(error).__name__}: {error}"

    def _ask(self, *, all_of: bool) -> None:
        """Ask for results, in an order of this rank's own."""
        for place in sorted(self.handles, key=lambda each: hash((each, self.rank))):
            if all_of or (self.script.own + place * 7 + self.rank) % 3 == 0:
                self.rows[place] = self.handles.pop(place).result()


def play(comm: Any, script: Script) -> list[tuple[int, Any]]:
    """Play a script on one rank."""
    return Player(comm, script).play()


def verdict(script: Script) -> Verdict:
    """Play a script by threads; return how it ended, what is wrong, how much was compared."""
    ended = outcomes(script.ranks, play, script, limit=60)
    errors = [f"{type(each.error).__name__}: {each.error}" for each in ended if each.error]
    if errors:
        hung = any(word in errors[0] for word in ("deadlock", "still busy"))
        return "hang" if hung else "error", errors, Counter()
    wrong, seen = judge(script, [each.value for each in ended])
    return "wrong" if wrong else "right", wrong, seen


def drawn(count: int, number: int, ranks: Sequence[int]) -> list[Script]:
    """Return scripts that hypothesis draws."""
    found: list[Script] = []
    options: dict[str, Any] = {"database": None, "deadline": None, "phases": [Phase.generate]}

    @seed(number)
    @settings(max_examples=count, suppress_health_check=[*HealthCheck], **options)
    @given(scripts(ranks))
    def keep(script: Script) -> None:
        found.append(script)

    keep()
    return found[:count]


def play_all(comm: Any, chosen: Sequence[Script]) -> list[Any]:
    """Play scripts one after the other in one world."""
    return [play(comm, script) for script in chosen]


def on_gloo(chosen: Sequence[Script], ranks: int) -> list[Verdict]:
    """Play scripts in one world of processes."""
    per_rank = run(ranks, play_all, chosen, backend="gloo", limit=900)
    verdicts = []
    for script, *rows in zip(chosen, *per_rank, strict=True):
        wrong, seen = judge(script, rows)
        verdicts.append(("wrong" if wrong else "right", wrong, seen))
    return verdicts


def counted(where: str, chosen: Sequence[Script], verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return the counts of one backend; print them, and what is not right."""
    total: Counter[str] = Counter(scripts=len(chosen))
    for script, (how, what, seen) in zip(chosen, verdicts, strict=True):
        total += seen
        total[how] += 1
        if how != "right" and total["wrong"] + total["hang"] + total["error"] <= 5:
            print(how, what, script)
    total["distinct"] = len({repr(script) for script in chosen})
    keys = ("scripts", "distinct", "right", "wrong", "hang", "error", "rows", "values", "faults")
    told = {key: total[key] for key in keys}
    print(where, told, flush=True)
    return told


def main() -> None:
    """Play scripts by threads and by processes; print the counts, write JSON."""
    ask = parser(__doc__)
    ask.add_argument("--threads", type=int, default=10_000)
    ask.add_argument("--gloo", type=int, default=300)
    ask.add_argument("--seed", type=int, default=0)
    args = ask.parse_args()
    torch.set_num_threads(1)
    began, result = time.perf_counter(), dict[str, Any]()
    if args.threads:
        chosen = drawn(args.threads, args.seed, range(1, 9))
        result["threads"] = counted("threads", chosen, [verdict(script) for script in chosen])
    for ranks in (2, 3, 4) if args.gloo else ():
        where = f"gloo, {ranks} ranks"
        chosen = drawn(args.gloo // 3, args.seed + ranks, [ranks])
        result[where] = counted(where, chosen, on_gloo(chosen, ranks))
    result["seconds"] = round(time.perf_counter() - began)
    write_json("log_scripts.json", result)


if __name__ == "__main__":
    main()

"""Random interleavings of calls of the main thread and of the background, and ranks that fail.

All ranks of an interleaving make the same calls: collectives, flushes that wait and that do not,
``sync_async``. Each asks for results when it likes, in any order. In half of them a rank fails in
the middle: it raises, returns too early, leaves a call out, or (processes) ends by ``os._exit``.
Where no rank fails, results must have the bits of blocking calls. Where one does, every other rank
must end, at once or with an error of ours that names it, or that says who waits for whom.

    python -m benchmarks.log_interleavings               # writes results/log_interleavings.json
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any, NamedTuple

import torch
from torchmetrics import SumMetric

import distmetrics as dm
from benchmarks.common import arguments, write_json
from distmetrics.errors import DistmetricsError
from distmetrics.testing import Outcome, outcomes, run

CALLS = ("flush", "flush later", "flush later", "sync later", "sync later", "sync", "mean", "none")
FAULTS = ("raise", "return", "leave out")
STEPS = 10
LIMIT = 60.0  # seconds, after which a world counts as hung


class Plan(NamedTuple):
    """An interleaving: its seed, its ranks, and which of them fails where, how."""

    seed: int
    ranks: int
    rank: int = 0
    step: int = 0
    fault: str = ""

    @classmethod
    def of(cls, seed: int, faults: tuple[str, ...] = FAULTS) -> Plan:
        """Draw an interleaving."""
        draw = random.Random(seed)
        ranks = draw.randint(2, 5)
        if draw.random() < 0.5:
            return cls(seed, ranks)
        fault = draw.choice(faults)
        return cls(seed, ranks, draw.randrange(ranks), draw.randrange(STEPS), fault)


class FailedError(Exception):
    """What a rank that fails raises."""


class ReturnedError(Exception):
    """Ends a rank that returns too early."""


class Rank:
    """One rank of an interleaving; ``blocks``: makes the same calls without a background."""

    def __init__(self, comm: Any, plan: Plan, *, blocks: bool = False) -> None:
        self.comm, self.plan, self.blocks = comm, plan, blocks
        self.shared = random.Random(plan.seed + 1)
        self.own = random.Random(plan.seed * 31 + comm.rank)
        self.log, self.metric = dm.Log(comm), SumMetric()
        self.results: dict[int, Any] = {}
        self.waiting: dict[int, Any] = {}
        self.begun: list[Any] = []

    def play(self) -> str:
        """Return all results, by their steps."""
        for step in range(STEPS):
            self._note(step)
            call = self.shared.choice(CALLS)
            if not self._fails(step):
                self._make(step, call)
            while self.waiting and self.own.random() < 0.3:
                self._ask(self.own.choice(list(self.waiting)))
        for step in self.own.sample(list(self.waiting), len(self.waiting)):
            self._ask(step)
        return repr(sorted(self.results.items()))

    def _note(self, step: int) -> None:
        rank = self.comm.rank
        self.log.mean("loss", torch.tensor(step / 7 + rank), weight=1 + rank)
        if (step + rank) % 3 == 0:
            self.log.max(f"of {rank}", float(step))
        self.metric.update(torch.tensor(float(step * rank)))

    def _fails(self, step: int) -> bool:
        """True where this rank leaves a call out; may end it."""
        plan = self.plan
        if not plan.fault or (plan.rank, plan.step) != (self.comm.rank, step):
            return False
        if plan.fault == "raise":
            raise FailedError
        if plan.fault == "return":
            raise ReturnedError
        if plan.fault == "exit":
            os._exit(7)
        return True

    def _make(self, step: int, call: str) -> None:
        later = call.endswith("later") and not self.blocks
        if call == "none":
            return
        if call == "mean":
            self.results[step] = dm.mean(float(step), weight=1, comm=self.comm)
        elif call.startswith("flush") and later:
            self._begin(step, self.log.flush(wait=False))
        elif call.startswith("flush"):
            self.results[step] = self.log.flush()
        elif later:
            self._begin(step, dm.sync_async(self.metric, comm=self.comm))
            self.metric.reset()
        else:
            self.results[step] = dm.sync_and_compute(self.metric, comm=self.comm)
            self.metric.reset()

    def _begin(self, step: int, handle: Any) -> None:
        self.waiting[step] = handle
        self.begun.append(handle)

    def _ask(self, step: int) -> None:
        self.results[step] = self.waiting.pop(step).result()


def play(comm: Any, plan: Plan) -> tuple[str, str]:
    """Return a rank's results; and, where none fails, those of blocking calls."""
    rank = Rank(comm, plan)
    try:
        ours = rank.play()
    except ReturnedError:
        return "", ""
    finally:
        for handle in rank.begun:  # else a warning tells of errors that nobody has asked for
            handle.is_heard = True
    blocking = "" if plan.fault else Rank(comm, plan, blocks=True).play()
    return ours, blocking


def play_all(comm: Any, plans: list[Plan]) -> list[tuple[str, str]]:
    """Play several in one world."""
    return [play(comm, plan) for plan in plans]


def judged(plan: Plan, ended: list[Outcome]) -> str:
    """Return how an interleaving ended: right, wrong, unnamed or hang."""
    texts = {each.rank: str(each.error) for each in ended if each.error is not None}
    if any("still busy" in text for text in texts.values()):
        return "hang"
    if not plan.fault:
        same = not texts and all(each.value[0] == each.value[1] for each in ended)
        return "right" if same else "unnamed" if texts else "wrong"
    others = [each for each in ended if each.rank != plan.rank]
    if plan.fault == "leave out":  # the others miss a call, and cannot all go on
        draw = random.Random(plan.seed + 1)
        left_out = [draw.choice(CALLS) for _ in range(STEPS)][plan.step]
        is_told = all(isinstance(each.error, DistmetricsError) for each in others)
        return "right" if is_told or (left_out == "none" and not texts) else "unnamed"
    for error in (each.error for each in others if each.error is not None):
        if not isinstance(error, DistmetricsError) or f"rank {plan.rank}" not in str(error):
            return "unnamed"
    return "right"


def by_threads(plan: Plan) -> str:
    """Play an interleaving by threads."""
    return judged(plan, outcomes(plan.ranks, play, plan, limit=LIMIT))


def by_processes(plan: Plan) -> str:
    """Play one in which a process ends."""
    return judged(plan, outcomes(plan.ranks, play, plan, backend="gloo", limit=LIMIT))


def dying(count: int) -> list[Plan]:
    """Return interleavings of two or three processes, of which one ends by os._exit."""
    draw = random.Random(5)
    plans = []
    for seed in range(count):
        ranks = draw.randint(2, 3)
        plans.append(Plan(seed, ranks, draw.randrange(ranks), draw.randrange(STEPS), "exit"))
    return plans


def counted(where: str, results: list[str], plans: list[Plan]) -> dict[str, int]:
    """Return how many ended how; print that, and those that did not end right."""
    for how, plan in zip(results, plans, strict=True):
        if how != "right":
            print(how, plan)
    counts = Counter(results)
    told = {"played": len(plans), "with a fault": sum(bool(plan.fault) for plan in plans)}
    told |= {name: counts[name] for name in ("right", "wrong", "unnamed", "hang")}
    print(where, told, flush=True)
    return told


def main() -> None:
    """Play, print the counts, write JSON."""
    args = arguments(__doc__, threads=(10_000, 20), gloo=(300, 5), dying=(20, 1))
    torch.set_num_threads(1)
    began, result = time.perf_counter(), dict[str, Any]()
    plans = [Plan.of(seed) for seed in range(args.threads)]
    result["threads"] = counted("threads", [by_threads(plan) for plan in plans], plans)
    plans = [Plan(seed, 2) for seed in range(args.gloo)]
    per_rank = run(2, play_all, plans, backend="gloo") if plans else []
    same = [all(ours == other for ours, other in each) for each in zip(*per_rank, strict=True)]
    result["gloo"] = counted("gloo", ["right" if each else "wrong" for each in same], plans)
    plans, where = dying(args.dying), "gloo, a process ends"
    result[where] = counted(where, [by_processes(plan) for plan in plans], plans)
    result["seconds"] = round(time.perf_counter() - began)
    if args.is_whole:
        write_json("log_interleavings.json", result)


if __name__ == "__main__":
    main()

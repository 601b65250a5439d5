"""A store, a clock and ranks that are objects: the guard's own code, without threads, processes or waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distmetrics.comm.verdict import Verdict
from distmetrics.errors import rank_ranges
from distmetrics.guard.diagnosis import FIRST_LOOK, Diagnosis
from distmetrics.guard.process_info import ProcessId
from distmetrics.guard.store import Answer, GuardStore, Identity, Wait


class CountedStore:
    """A store of this process, and how often it was asked what."""

    def __init__(self, store: Any = None) -> None:
        self.store = store or dist.HashStore()
        self.calls: Counter[str] = Counter()

    def clone(self) -> CountedStore:
        return self

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.store, name)


class Rank:
    """One rank: what it waits in, if it does, and how it answers."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.me = Identity(rank, job.world_size, ProcessId("machine", rank, "then"), "world")
        self.store = GuardStore(job.store, self.me)
        # Looks for a question are not counted: here they come with each step, twice as often as they do.
        self.listener = GuardStore(CountedStore(job.store.store), self.me)
        self.diagnosis: Diagnosis | None = None
        self.verdict: Verdict | None = None
        self.serial = 0
        self.where = f"is at train.py:{rank} in main"
        self.still, self.for_all, self.issued, self.calls = 0.0, True, {"world": 3}, {"world": 0}
        self.deaf, self.alone = False, True
        self.store.publish(None)

    def wait(
        self,
        group: str = "world",
        members: str = "",
        call: int = 1,
        *,
        kind: str = "all_gather",
        timeout: float = 300.0,
        after: float = 0.0,
        alone: bool = True,
        issued: int = 3,
        counts_exactly: bool = False,
        is_watched: bool = False,
    ) -> None:
        """Begin to wait."""
        self.serial += 1
        self.alone = alone
        members = members or rank_ranges(range(self.job.world_size))
        text = f'{kind} "{group} {call}"  train.py:{10 + call} in main'
        wait = Wait(self.serial, group, members, call, kind, text, issued, counts_exactly, is_watched)
        begun = self.job.now + after
        due = begun + FIRST_LOOK
        self.diagnosis = Diagnosis(self.me, wait, timeout, self.store, begun, due, self.job.state_of)

    def go_on(self) -> None:
        """The wait is over."""
        assert self.diagnosis is not None
        self.diagnosis.close()
        self.diagnosis = self.verdict = None

    def answer(self) -> None:
        """Answer what was asked, as the thread of a rank does."""
        if self.deaf or (question := self.listener.next_question()) is None:
            return
        waits = 0 if self.diagnosis is None else self.serial if self.alone else -self.serial
        where = "" if waits else self.where
        self.store.answer(Answer(question, waits, where, self.still, self.for_all, self.issued, self.calls))


class Job:
    """All ranks of a job, and its time."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.store = CountedStore()
        self.now = 1000.0
        self.states: dict[int, str] = {}
        self.ranks = [Rank(self, rank) for rank in range(world_size)]

    def state_of(self, process: ProcessId) -> str:
        return self.states.get(process.pid, "alive")

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time go by, in steps of 50 ms; answers come with the next step."""
        end = self.now + seconds
        while self.now < end and not until():
            self.now += 0.05
            for rank in self.ranks:
                diagnosis = rank.diagnosis
                if diagnosis is not None and rank.verdict is None and self.now >= diagnosis.due:
                    rank.verdict = diagnosis.step(self.now)
            for rank in self.ranks:
                rank.answer()

    @property
    def verdicts(self) -> list[str | None]:
        """The first line of each rank's verdict."""
        return [None if rank.verdict is None else rank.verdict.what for rank in self.ranks]

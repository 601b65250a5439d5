"""Whether a wait can still be met, by what the rank that waits knows of the others. Pure.

A verdict is only given where the wait can never be met, or has lasted as long as the user allows.
Ranks that are just slow are named in a line of the log and never blamed before that.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise, starmap

from distmetrics.comm.verdict import SAME_ORDER, Departure, Verdict, deadlock, departed
from distmetrics.errors import ranks_do, ranks_in, who
from distmetrics.guard.store import Answer, RankStatus, Wait

LOST_FOR = 0.3  # seconds that whoever watches a process has to say how it ended
STOPPED_FOR = 3.0  # seconds that a process may be stopped by a signal
STILL_FOR = 0.75  # seconds in code of torch's, without using the processor: it stands still


@dataclass(frozen=True)
class JobSnapshot:
    """What one rank that waits knows of the others. Ranks are those of the job."""

    me: int
    world_size: int
    wait: Wait
    waited: float
    timeout: float
    statuses: Mapping[int, RankStatus]
    departures: Sequence[Departure]
    seconds: Mapping[tuple[str, int], float]  # since a rank is "gone" or "stopped"
    answers: Mapping[int, Answer | None]
    questions: Mapping[tuple[int, int], int]  # that were put to the suspects since

    @functools.cached_property
    def waits(self) -> dict[int, Wait]:
        """What ranks wait in, as far as is known."""
        waits = {rank: status.wait for rank, status in self.statuses.items() if status.wait}
        return waits | {self.me: self.wait}

    @functools.cached_property
    def here(self) -> dict[int, Wait]:
        """The waits of the ranks that are in this call."""
        return {rank: wait for rank, wait in self.waits.items() if wait.place == self.wait.place}

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        """The ranks of the group."""
        return ranks_in(self.wait.members)

    @functools.cached_property
    def missing(self) -> list[int]:
        """Those that have not come to this call."""
        return self._missing_from(self.wait)

    def _missing_from(self, call: Wait) -> list[int]:
        came = {rank for rank, wait in self.waits.items() if wait.has_come_to(call)}
        return [rank for rank in ranks_in(call.members) if rank not in came]

    @functools.cached_property
    def left(self) -> dict[int, Departure]:
        """The ranks that have left without making this call, each with its first word."""
        return {d.rank: d for d in self.departures[::-1] if self._never_comes(d)}

    def _never_comes(self, departure: Departure) -> bool:
        # One that was interrupted in this very call has counted it, and is gone.
        has_failed = departure.failed and ("gone", departure.rank) in self.seconds
        return departure.calls.get(self.wait.group, 0) < self.wait.number or has_failed

    @functools.cached_property
    def circle(self) -> list[int]:
        """The ranks of a circle of waits that this rank depends on, one for each call of it."""
        # For each call the calls that it waits for, each with a rank that is in that.
        graph: dict[str, dict[str, int]] = {}
        todo = {self.wait.place: self.wait}
        while todo:
            place, wait = todo.popitem()
            graph[place] = {}
            for rank in ranks_in(wait.members):
                other = self.waits.get(rank, wait)
                if not other.has_come_to(wait):
                    graph[place][other.place] = rank
                    if other.place not in graph:
                        todo[other.place] = other
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return sorted(graph[after][before] for before, after in pairwise(error.args[1]))
        return []

    @functools.cached_property
    def suspects(self) -> set[tuple[int, int]]:
        """The ranks that must confirm what they wait in, before they are blamed for it.

        Each with the serial number of its wait, or 0 in code of torch's own.
        """
        held = self.circle
        if not held and self._in_another and not self.wait.counts_exactly:
            known = self.here.keys() | {departure.rank for departure in self.departures}
            held = [rank for rank in range(self.world_size) if rank not in known]
            if not all(map(self._seems_held, held)):
                return set()
        return {(rank, self.waits[rank].serial if rank in self.waits else 0) for rank in held}

    def _seems_held(self, rank: int) -> bool:
        """True if a rank waits for others, as far as is known."""
        if (wait := self.waits.get(rank)) is not None:
            return bool(self._missing_from(wait))
        answer = self.answers.get(rank)
        return answer is not None and answer.still >= STILL_FOR

    @property
    def _are_confirmed(self) -> bool:
        """True if each suspect has confirmed, since all of them were seen, that it waits there."""
        return bool(self.suspects) and all(starmap(self._has_confirmed, self.suspects))

    def _has_confirmed(self, rank: int, serial: int) -> bool:
        question, answer = self.questions.get((rank, serial)), self.answers.get(rank)
        if question is None or answer is None or answer.question < question:
            return False
        return answer.waits == serial and self._seems_held(rank)

    @functools.cached_property
    def whom_to_ask(self) -> list[int]:
        """The ranks in no call of ours that this wait is for, or that could release those."""
        ranks = self.missing if self.wait.counts_exactly else range(self.world_size)
        return [rank for rank in ranks if rank not in self.waits]

    def verdict(self) -> Verdict | None:
        """Return why this wait can't be met, or has lasted too long; None while it may be met."""
        found = next(chain(self._never_met(), self._lasts_too_long()), None)
        if found is None:
            return None
        told = {*self.members, *found.peers}
        return found.but(per_rank={rank: self.line(rank) for rank in told})

    def _never_met(self) -> Iterator[Verdict]:
        """Yield why this wait can't be met, the surest reason first."""
        if left := {rank: self.left[rank] for rank in self.members if rank in self.left}:
            yield departed(left, {})
        if gone := self._missing_in("gone", LOST_FOR):
            what = f"the process of {who(gone)} is gone"
            if len(gone) > 1:
                what = f"the processes of {who(gone)} are gone"
            yield Verdict(
                "peer-lost",
                f"{what}, and others wait",
                gone,
                likely="killed, by the system for want of memory, say, or ended by os._exit.",
                do=f"look for the kill in the log of the machine of {who(gone)} (dmesg), and at "
                "the last words there.",
            )
        if odd := [rank for rank, wait in self.here.items() if wait.kind != self.wait.kind]:
            likely = "a collective under a condition, or in a loop, that not all ranks share."
            what = "ranks disagree on a collective"
            yield Verdict("mismatch", what, tuple(odd), likely=likely, do=SAME_ORDER)
        if self.circle and self._are_confirmed:
            groups = sorted({self.waits[rank].group for rank in self.circle})
            what = f"{who(self.circle)} wait for each other in different calls"
            yield deadlock(what, self.circle, {}).but(groups=tuple(groups))
        yield from self._out_of_step()

    def _out_of_step(self) -> Iterator[Verdict]:
        """Yield that ranks have issued others of torch's own."""
        issued = self.wait.issued
        if uneven := [r for r, w in self.here.items() if w.counts_exactly and w.issued != issued]:
            what = "ranks came to a collective after different numbers of torch.distributed's own"
            likely = "a collective that only some ranks reach."
            yield Verdict("diverged", what, tuple(uneven), likely=likely, do=SAME_ORDER)
        is_sure = self.wait.counts_exactly or (not self.circle and self._are_confirmed)
        if self._in_another and is_sure:
            do = f"{SAME_ORDER[:-1]}; distmetrics.guard.watch() finds the first that differs."
            if any(wait.is_watched for wait in self.here.values()):  # it is in use, and has not
                do = SAME_ORDER
            yield Verdict(
                "diverged",
                f"{ranks_do(self._in_another, 'waits in a collective of torch.distributed')}, and "
                "this rank in another",
                tuple(self._in_another),
                likely="a collective that only some ranks reach, or in another order.",
                do=do,
            )

    @functools.cached_property
    def _in_another(self) -> list[int]:
        """The ranks that have issued a collective of torch's own in the place of this call.

        The collectives of a group pair up in the order in which each rank issues them. Gloo counts
        sends and receives as well, so there this is sure only while no rank of the job goes on.
        """
        return [rank for rank in self.missing if self._has_issued_another(rank)]

    def _has_issued_another(self, rank: int) -> bool:
        wait, answer = self.wait, self.answers.get(rank)
        if rank in self.waits or answer is None or answer.waits:
            return False  # in the first and third case it is in a call of ours
        if answer.calls.get(wait.group, 0) >= wait.number:
            return False
        is_in_one = wait.counts_exactly or answer.waits_for_all
        return is_in_one and answer.issued.get(wait.group, 0) > wait.issued >= 0

    def _lasts_too_long(self) -> Iterator[Verdict]:
        """Yield why this wait has lasted too long, though it may be met."""
        if stopped := self._missing_in("stopped", STOPPED_FOR):
            yield Verdict(
                "peer-lost",
                ranks_do(stopped, "is stopped by a signal (SIGSTOP), and others wait"),
                stopped,
                likely="somebody, or the scheduler, has suspended the process.",
                do="let it go on (SIGCONT) and start the job again.",
            )
        if self.waited >= self.timeout:
            late, within = tuple(self.missing), f"within {self.timeout:g} s"
            do = "see where each rank is, or allow more time: DISTMETRICS_TIMEOUT=SECONDS."
            if late:
                what = f"{who(late)} did not come to a collective {within}"
                likely = "work that the other ranks do not have, or a rank that is stuck."
                yield Verdict("diverged", what, late, likely=likely, do=do)
            what = f"all ranks came to a collective, and it did not end {within}"
            likely = "the network between the ranks is cut or very slow."
            yield Verdict("peer-lost", what, likely=likely, do=do)

    def _missing_in(self, state: str, least: float) -> tuple[int, ...]:
        """Return the missing ranks that have been in some state for at least so many seconds."""
        return tuple(r for r in self.missing if self.seconds.get((state, r), -1.0) >= least)

    def line(self, rank: int) -> str:
        """Return what is known of a rank, the surest first."""
        if rank in self.left:
            return self.left[rank].why
        if ("gone", rank) in self.seconds:
            return "its process is gone"
        if (seconds := self.seconds.get(("stopped", rank))) is not None:
            return f"is stopped, since {seconds:.1f} s"
        if rank in self.waits:
            return f"waits in {self.waits[rank].text}"
        if answer := self.answers.get(rank):
            return answer.where
        if rank not in self.statuses:
            return "has no guard of distmetrics"
        return "has not answered"

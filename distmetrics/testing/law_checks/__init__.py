"""How each law is judged on one case: a function of a trial that raises ``LawBroken`` or nothing.

A check compares runs with runs, so that one fault breaks the law that it is about and not all of
them: the law of the empty rank compares a world with an empty rank to the same world without it,
not to the single process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distmetrics.testing import laws
from distmetrics.testing.law_checks import numbers, state, values
from distmetrics.testing.laws import Law
from distmetrics.testing.trial import NotJudged, Trial

CHECKS: Mapping[Law, Callable[[Trial], None]] = {
    laws.SINGLE_IS_SHARDED: values.single_is_sharded,
    laws.RANKS_AGREE: values.ranks_agree,
    laws.EMPTY_RANK_IS_NEUTRAL: values.empty_rank,
    laws.EMPTY_BATCH_IS_NEUTRAL: values.empty_batch,
    laws.ASSOCIATIVE: values.associative,
    laws.RANK_ORDER: values.rank_order,
    laws.SAMPLE_ORDER: values.sample_order,
    laws.BATCH_SPLIT: values.batch_split,
    laws.WORLD_SIZE: values.world_size,
    laws.PADDING_REMOVED: values.padding_removed,
    laws.SYNC_IS_IDEMPOTENT: state.sync_is_idempotent,
    laws.OBSERVATION: state.observation,
    laws.STATE_RESTORED: state.state_restored,
    laws.SAME_SEQUENCE: values.same_sequence,
    laws.NO_HANG: values.no_hang,
    laws.RESET_IS_NEW: state.reset_is_new,
    laws.ROUND_TRIP: state.round_trip,
    laws.DTYPE_KEPT: state.dtype_kept,
    laws.LOW_PRECISION: numbers.low_precision,
    laws.LARGE_COUNTS: numbers.large_counts,
    laws.SHIFT: numbers.shift,
    laws.NAN_EVERYWHERE: numbers.nan_everywhere,
    laws.SUBGROUP: state.subgroup,
    laws.COLLECTION: state.collection,
}


def judge(law: Law, trial: Trial) -> None:
    """Judge a law on one case.

    Raises:
        LawBroken: the metric breaks it.
        NotJudged: it says nothing of this case.
    """
    if law.not_own and trial.subject.sync != "distmetrics":
        raise NotJudged(law.not_own)
    if law.needs_state and trial.subject.is_function:
        raise NotJudged("a function holds no state")
    CHECKS[law](trial)

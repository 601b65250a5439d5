"""All rules, by code."""

from distlint.model import Rule
from distlint.rules.dl001 import HardCodedDevice
from distlint.rules.dl005 import Unpicklable
from distlint.rules.dl101 import CollectiveUnderRankGuard
from distlint.rules.dl201 import SyncDistNonAverageable
from distlint.rules.dl202 import EvalLogNotSynced
from distlint.rules.dl203 import RankZeroOnlyNotSynced
from distlint.rules.dl204 import MetricForwardLogged
from distlint.rules.dl205 import EvaluationSamplerRepeats
from distlint.rules.dl206 import ReduceBeforeGather
from distlint.rules.dl207 import IntegerMean
from distlint.rules.dl208 import SamplerWithoutSetEpoch
from distlint.rules.dl209 import MeanOfGatheredList
from distlint.rules.dl210 import MetricInPlainContainer
from distlint.rules.dl211 import MetricUpdatedOnReplica

_RULES: tuple[type[Rule], ...] = (
    HardCodedDevice,
    Unpicklable,
    CollectiveUnderRankGuard,
    SyncDistNonAverageable,
    EvalLogNotSynced,
    RankZeroOnlyNotSynced,
    MetricForwardLogged,
    EvaluationSamplerRepeats,
    ReduceBeforeGather,
    IntegerMean,
    SamplerWithoutSetEpoch,
    MeanOfGatheredList,
    MetricInPlainContainer,
    MetricUpdatedOnReplica,
)
RULES: dict[str, Rule] = {rule.code: rule() for rule in _RULES}

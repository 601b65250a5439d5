"""All rules, by code."""

from distlint.model import Rule
from distlint.rules.dl001 import HardCodedDevice
from distlint.rules.dl002 import TensorWithoutDevice
from distlint.rules.dl003 import TensorAttributeNotBuffer
from distlint.rules.dl004 import ManualDistributedSampler
from distlint.rules.dl005 import Unpicklable
from distlint.rules.dl101 import CollectiveUnderRankGuard
from distlint.rules.dl102 import LogUnderRankGuard
from distlint.rules.dl103 import CollectiveUnderDataGuard
from distlint.rules.dl104 import CollectiveInLocalLoop
from distlint.rules.dl105 import CollectiveInUnorderedLoop
from distlint.rules.dl106 import CollectiveInExcept
from distlint.rules.dl107 import LogKeysDiffer
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
from distlint.rules.dl215 import MetricFromPaddedLoader
from distlint.rules.dl301 import StepOutputsNeverCleared
from distlint.rules.dl302 import SyncDistEveryStep
from distlint.rules.dl303 import GatherWholeDataset
from distlint.rules.dl900 import UnusedIgnore

_RULES: tuple[type[Rule], ...] = (
    HardCodedDevice,
    TensorWithoutDevice,
    TensorAttributeNotBuffer,
    ManualDistributedSampler,
    Unpicklable,
    CollectiveUnderRankGuard,
    LogUnderRankGuard,
    CollectiveUnderDataGuard,
    CollectiveInLocalLoop,
    CollectiveInUnorderedLoop,
    CollectiveInExcept,
    LogKeysDiffer,
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
    MetricFromPaddedLoader,
    StepOutputsNeverCleared,
    SyncDistEveryStep,
    GatherWholeDataset,
    UnusedIgnore,
)
RULES: dict[str, Rule] = {rule.code: rule() for rule in _RULES}

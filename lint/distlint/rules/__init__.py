"""All rules, by code."""

from distlint.model import Rule
from distlint.rules.dl001 import HardCodedDevice
from distlint.rules.dl002 import TensorWithoutDevice
from distlint.rules.dl003 import TensorAttributeNotBuffer
from distlint.rules.dl004 import ManualDistributedSampler
from distlint.rules.dl005 import Unpicklable
from distlint.rules.dl101 import CollectiveUnderRankGuard
from distlint.rules.dl201 import SyncDistNonAverageable
from distlint.rules.dl301 import StepOutputsNeverCleared
from distlint.rules.dl302 import SyncDistEveryStep
from distlint.rules.dl303 import GatherWholeDataset

_RULES: tuple[type[Rule], ...] = (
    HardCodedDevice,
    TensorWithoutDevice,
    TensorAttributeNotBuffer,
    ManualDistributedSampler,
    Unpicklable,
    CollectiveUnderRankGuard,
    SyncDistNonAverageable,
    StepOutputsNeverCleared,
    SyncDistEveryStep,
    GatherWholeDataset,
)
RULES: dict[str, Rule] = {rule.code: rule() for rule in _RULES}

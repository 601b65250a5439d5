"""All rules, by code."""

from distlint.model import Rule
from distlint.rules.dl001 import HardCodedDevice
from distlint.rules.dl005 import Unpicklable
from distlint.rules.dl101 import CollectiveUnderRankGuard
from distlint.rules.dl201 import SyncDistNonAverageable
from distlint.rules.dl202 import EvalLogNotSynced
from distlint.rules.dl203 import RankZeroOnlyNotSynced
from distlint.rules.dl204 import MetricForwardLogged

_RULES: tuple[type[Rule], ...] = (
    HardCodedDevice,
    Unpicklable,
    CollectiveUnderRankGuard,
    SyncDistNonAverageable,
    EvalLogNotSynced,
    RankZeroOnlyNotSynced,
    MetricForwardLogged,
)
RULES: dict[str, Rule] = {rule.code: rule() for rule in _RULES}

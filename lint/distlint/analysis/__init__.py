"""One abstract interpreter: what each function of a file does, to whom, and under what."""

from distlint.analysis.events import Event, Guard, Step, Summary
from distlint.analysis.logs import Log, key_of, logs, only_logs
from distlint.analysis.module import Analysis
from distlint.analysis.stages import Stages
from distlint.analysis.value import Value

__all__ = ["Analysis", "Event", "Guard", "Log", "Stages", "Step", "Summary", "Value", "key_of", "logs", "only_logs"]

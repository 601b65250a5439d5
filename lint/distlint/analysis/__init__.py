"""One abstract interpreter: what each function of a file does, to whom, and under what.

Whoever asks needs the record of what was seen, ``Analysis``, alone; ``interpreter.analyse`` makes it.
"""

from distlint.analysis.events import Event, Guard, Step, Summary
from distlint.analysis.module import Analysis
from distlint.analysis.value import Value

__all__ = ["Analysis", "Event", "Guard", "Step", "Summary", "Value"]

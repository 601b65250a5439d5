"""Liveness: who waits, who left, who is dead, and what that means for those who wait.

Events: a rank publishes what it waits in (:mod:`rank_status`) and how it left (:mod:`departures`).
What one rank knows of the others gives a verdict, or nothing yet (:mod:`view`, pure); a verdict has
the same words for groups, worlds of threads and launches (:mod:`verdict`, pure). One state machine
a wait collects what it needs to know (:mod:`diagnosis`) from the job's key-value store
(:mod:`guard_store`), in the threads of a :mod:`watchdog`. :mod:`pending_calls` makes a group's
calls, each of which ends in its result or in a verdict. The public face, settings and ``watch``, is
:mod:`distmetrics.guard`.
"""

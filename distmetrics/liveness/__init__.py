"""Liveness: who waits, who left, who is dead, and what that means for those who wait.

A rank publishes what it waits in (:mod:`rank_status`) and how it left (:mod:`departures`). From
everybody's status follows a verdict, or nothing yet (:mod:`verdict`, pure). One state machine a
wait collects what is needed for it (:mod:`diagnosis`), over the job's key-value store
(:mod:`guard_store`), in the threads of a :mod:`watchdog`. :mod:`pending_calls` makes a group's
calls, and ends each in its result or in the verdict. Worlds of threads and the launchers use the
same verdicts. The public face, settings and ``watch``, is :mod:`distmetrics.guard`.
"""

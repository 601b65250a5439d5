"""The guard's inner part: who waits where, what that means, and the threads that find it out.

Public are the settings, ``watch`` and ``guarded_epoch`` of :mod:`distmetrics.guard`.
"""

"""Conformance: does every torchmetrics class sync to the value of a single process?

``python -m benchmarks.conformance``: for each class, world size and layout of batches over ranks,
the verdict for distmetrics and for torchmetrics' own sync. The table is in
``benchmarks/results/conformance.md``.
"""

from benchmarks.conformance.vision import prepare

prepare()  # before anything imports torchmetrics, also in the processes that are started from here

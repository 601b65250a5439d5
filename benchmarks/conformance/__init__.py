"""Conformance: does every torchmetrics class sync to the value of a single process?

``python -m benchmarks.conformance``: for each class, world size and layout of batches over ranks,
the verdict for distmetrics and for torchmetrics' own sync. The table is in
``benchmarks/results/conformance.md``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from torch import library

_SUPPRESSION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[Any] = []  # a torch Library forgets what it declared once it is collected


def prepare() -> None:
    """Import torchvision, if it is installed, also where its operators do not fit the torch.

    PyPI has torchvision for CUDA builds of torch only. Next to a CPU build its compiled part cannot
    be loaded, and the import fails, since it describes two operators that then do not exist: their
    names are declared first. torchmetrics' detection classes need none of them.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared: Any = library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        _declared.append(declared)
        for operator in ("nms", "qnms"):
            declared.define(operator + _SUPPRESSION)
        importlib.import_module("torchvision")


prepare()  # before anything imports torchmetrics, also in the processes that are started from here

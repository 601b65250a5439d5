"""Codes that rules once had. They are never used again, and naming one is told, not an error."""

from __future__ import annotations

_GUARD = "the guard finds it while the job runs: distmetrics.guard.watch()"
_UNSEEN = "no such finding was right in other projects"

RETIRED = {
    "DL103": f"a collective that depends on this rank's data; {_GUARD}",
    "DL104": f"a collective in a loop of another length on each rank; {_GUARD}",
    "DL105": f"collectives in the order of a set or a listing of files; {_GUARD}",
    "DL106": f"a collective inside except or finally; {_GUARD}",
    "DL107": f"ranks that log under different keys; {_GUARD}",
    "DL108": f"a variable that only some ranks change; {_GUARD}",
    "DL111": f"the forward pass of a wrapped model on some ranks; {_GUARD}",
    "DL112": f"tensors of another length on each rank; {_GUARD}",
    "DL206": f"a mean of each rank that is gathered; {_UNSEEN}",
    "DL207": f"a mean of an integer tensor; {_UNSEEN}",
    "DL210": f"metrics in a plain list on a module; {_UNSEEN}",
    "DL213": f"sums of means over ranks; {_UNSEEN}",
    "DL214": f"the rank on the node with the number of all ranks; {_UNSEEN}",
    "DL215": f"a metric updated from a loader that repeats samples; {_UNSEEN}",
    "DL216": f"a running total that is summed each turn; {_UNSEEN}",
    "DL217": f"a loss from a collective without gradients; {_UNSEEN}",
    "DL303": f"predictions that are gathered for a few sums; {_UNSEEN}",
}

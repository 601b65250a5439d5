"""To be deleted with the last rule that reads the concrete tree."""

from distlint.analysis.project import NO_PROJECT, ClassSummary, Project, Settings, declares

__all__ = ["MOVING", "NO_PROJECT", "ClassSummary", "Project", "Settings", "declares", "kinds_of"]

# Methods that bring a tensor, or what is made of it, to another device or out of torch.
MOVING = frozenset({"cpu", "cuda", "numpy", "to", "to_device", "type_as", "xpu"})
_KINDS = {
    "lightning_module": ("lightning", "module"),
    "module": ("module",),
    "data_module": ("datamodule",),
    "callback": ("callback",),
    "metric": ("metric", "module"),
    "dataset": ("dataset",),
    "fabric": ("lite",),
}


def kinds_of(summary: ClassSummary) -> frozenset[str]:
    """The kinds of a class by its family."""
    return frozenset(_KINDS.get(summary.family, ("plain",) if summary.known else ()))

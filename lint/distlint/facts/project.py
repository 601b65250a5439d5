"""To be deleted with the last rule that reads the concrete tree."""

from distlint.analysis.project import NO_PROJECT, ClassSummary, Project, Settings, declares

__all__ = ["MOVING", "NO_PROJECT", "ClassSummary", "Project", "Settings", "declares"]

# Methods that bring a tensor, or what is made of it, to another device or out of torch.
MOVING = frozenset({"cpu", "cuda", "numpy", "to", "to_device", "type_as", "xpu"})

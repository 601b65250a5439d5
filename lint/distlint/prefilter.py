"""Which files can matter at all, told by bytes. Never wrong in the direction of silence: see its tests."""

from __future__ import annotations

import re

from distlint.analysis.project import Project
from distlint.api.tokens import may_have_collective
from distlint.model import Rule

# What stands for the bases that a class has in another file, by their family, and for a collective that is made there.
EVIDENCE = {
    "module": b" torch nn.Module class forward",
    "lightning_module": b" torch lightning LightningModule class forward _step",
    "data_module": b" lightning LightningDataModule DataLoader class",
    "dataset": b" torch Dataset class",
    "callback": b" lightning Callback class",
    "metric": b" torchmetrics Metric class",
    "fabric": b" LightningLite Fabric class",
    "wrapped": b" torch.distributed DistributedDataParallel FSDP",
}
_COLLECTIVE = b" torch.distributed barrier DistributedSampler"


def can_matter(rule: Rule, source: bytes) -> bool:
    """Whether the rule could report anything in this file."""
    return all(any(token in source for token in group) for group in rule.tokens) and rule.evidence(source)


def with_evidence(source: bytes, project: Project) -> bytes:
    """The file's bytes, followed by what the rules' tokens stand for where other files or the user supply it."""
    settings, evidence = project.settings, project.evidence
    visible = {_last(text) for text, full in project.names.items() if full in project.functions}
    visible |= set(map(_last, project.functions))
    if any(_last(name) in source for name in settings.collectives) or any(_is_called(source, each) for each in visible):
        evidence += _COLLECTIVE
    if any(_last(name) in source for name in settings.trainer_bases):
        evidence += EVIDENCE["lightning_module"]
    return source + b"\n" + evidence if evidence else source


def _last(name: str) -> bytes:
    return name.rpartition(".")[2].encode()


def _is_called(source: bytes, name: bytes) -> bool:
    """Whether a name may be called, here or by another name that it is given."""
    return name in source and re.search(rb"\b" + name + rb"(?:\s*\(|\s+as\s|\s*$)", source, re.MULTILINE) is not None


def may_define_collective(source: bytes) -> bool:
    """Whether a function of the file could make a collective, or a loader that is dealt out."""
    return b"def " in source and (b"DistributedSampler" in source or may_have_collective(source))

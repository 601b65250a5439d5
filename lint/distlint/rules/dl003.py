"""DL003."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst

from distlint.analysis import Analysis
from distlint.analysis.places import FACTORIES, Follower, Fresh, Meeting
from distlint.analysis.registered import moves_itself, registered, tensors_given
from distlint.concrete import ConcreteTree
from distlint.model import Change, Condition, Example, Repair, Report, Rule, Severity
from distlint.nodes import within
from distlint.syntax import ClassNode, FunctionNode, last_name

_NOT_SEEN = Condition("devices", "if this module runs on an accelerator")


class TensorAttributeNotBuffer(Rule):
    """A tensor stored on a module in ``__init__`` that is no buffer: it stays behind when the module moves.

    ``module.to(device)`` moves parameters, buffers and submodules, and no other attribute. The tensor stays
    on the CPU of every process, and the first operation with it fails on a GPU:

        RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0
        and cpu!

    How to fix: ``self.register_buffer("mean", mean)``; with ``persistent=False`` checkpoints stay as they are.

    Silent: tensors of rank 0; tensors that are moved where they are used (``self.mean.to(x)``), that are
    assigned anew elsewhere, that serve as an index alone, or whose partner is not known; modules that move them in
    ``to`` or ``_apply``. A module that no trainer is seen to place is for review.

    When to ignore: the module never leaves the CPU.
    """

    code, name, group = "DL003", "tensor-attribute-not-buffer", "portability"
    severity = Severity.WARNING
    tokens = ((b"torch",), (b"__init__",), tuple(sorted(name.encode() for name in FACTORIES)))
    bad = (
        Example(
            """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mean = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)
        self.steps = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.table = torch.eye(3)

    def forward(self, x):
        x = x - self.mean
        return self.attend(x, x.new_zeros(3))

    def attend(self, x: torch.Tensor, y: torch.Tensor):
        angles = x[:, None] * self.steps
        return torch.matmul(y, self.table) + angles
""",
            {7: "x - self.mean", 8: "if this module runs on an accelerator", 9: "torch.matmul"},
        ),
        Example(
            """\
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.scales = torch.linspace(0.0, 1.0, width)

    def forward(self, features):
        return self.project(features.flatten(1)) * self.scales
""",
            {8: "self.project(features.flatten(1)) * self.scales"},
        ),
    )
    good = (
        """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = torch.tensor(0.5)
        self.order = torch.randperm(dim)
        self.later = torch.zeros(3)
        self.state = torch.zeros(3)
        self.widths = torch.linspace(0, 1, 3).tolist()
        self.hook = torch.zeros(3)
        self.cpu_table = torch.eye(3)

    def forward(self, x):
        self.state = torch.zeros_like(x)
        x = (x - self.mean) * self.weight * self.scale + self.state
        x = x[:, self.order] + self.later.to(x.device)
        names = self.cpu_table + torch.ones(3)
        return x, self.hook, [width * x for width in self.widths], names
""",
        """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(3)

    def _apply(self, fn):
        self.mean = fn(self.mean)
        return super()._apply(fn)

    def forward(self, x):
        return x - self.mean

class Plain:
    def __init__(self):
        self.offsets = torch.arange(3)

    def forward(self, x):
        return x + self.offsets
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Look at what every module's ``__init__`` stores, and what it meets in the other methods."""
        for owner in analysis.index.all_classes:
            init = owner.methods.get("__init__")
            is_module = analysis.family(owner) in ("module", "lightning_module")
            if init is None or not is_module or moves_itself(owner):
                continue
            left = dict(_left_behind(analysis, owner, init))
            if left:
                yield from _reports(analysis, owner, init, left)


def _left_behind(analysis: Analysis, owner: ClassNode, init: FunctionNode) -> Iterator[tuple[str, ast.Assign]]:
    """Attributes that ``__init__`` makes on the CPU and that nothing else assigns."""
    follower = Follower(analysis.index, init, {})
    follower.run(init.node.body)
    stored: dict[str, list[ast.AST]] = {}
    for method in owner.methods.values():
        for node in within(method.node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                stored.setdefault(analysis.index.text_of(node), []).append(node)
    for assign in within(init.node, ast.Assign):
        if len(assign.targets) == 1:
            name = analysis.index.text_of(assign.targets[0])
            is_once = len(stored.get(name, ())) == 1 and name.startswith("self.")
            if is_once and any(isinstance(place, Fresh) for place in follower.stored.get(name, ())):
                yield name, assign


def _reports(analysis: Analysis, owner: ClassNode, init: FunctionNode, left: dict[str, ast.Assign]) -> Iterator[Report]:
    tensors, modules = registered(analysis.index, owner)
    is_placed = analysis.family(owner) == "lightning_module" or analysis.is_placed(owner)
    places = {**{name: Fresh(assign) for name, assign in left.items()}, **tensors}
    met: dict[ast.AST, Meeting] = {}
    for name, method in owner.methods.items():
        if name != "__init__":
            given = {**places, **tensors_given(analysis.index, method)}
            follower = Follower(analysis.index, method, given, modules)
            follower.run(method.node.body)
            for meeting in follower.meetings:
                met.setdefault(meeting.origin, meeting)
    for attribute, assign in left.items():
        if assign in met:
            text = " ".join(analysis.index.text_of(met[assign].node).split())[:80]
            message = (
                f"{attribute} is no buffer and stays on the CPU when the module moves;"
                f" it meets the device in {text}: use register_buffer"
            )
            trace = ((analysis.index.path, met[assign].node.lineno, "meets", text),)
            repair = partial(_repair, attribute.removeprefix("self.")) if _is_ready(init, assign) else None
            yield Report(assign, message, trace, None if is_placed else _NOT_SEEN, repair)


def _is_ready(init: FunctionNode, assign: ast.Assign) -> bool:
    """True if the module itself is made before an attribute is."""
    calls = within(init.node, ast.Call)
    return any(last_name(call.func) == "__init__" and call.lineno < assign.lineno for call in calls)


def _repair(attribute: str, tree: ConcreteTree, assign: cst.CSTNode) -> Repair | None:
    """A buffer that checkpoints do not hold."""
    if isinstance(assign, cst.SimpleStatementLine):  # which it is alone in
        assign = assign.body[0]
    if not isinstance(assign, cst.Assign):
        return None
    value = tree.source_at(assign.value)
    return Repair(True, (Change(assign, f'self.register_buffer("{attribute}", {value}, persistent=False)'),))

"""Where values live, and where two devices meet."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from distlint.facts import ModuleFacts
from distlint.facts.factories import Place
from distlint.facts.hosts import works_on_host
from distlint.facts.meeting import meeting
from distlint.facts.placement import place
from distlint.facts.tree import tail

CLASS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, width, encoder):
        super().__init__()
        self.width = width
        self.scale = math.sqrt(width)
        self.encoder = encoder
        self.layer = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x, mask=None, lengths=None):
        first, second = x
        probe({})
"""


def probe(expression: str) -> tuple[ModuleFacts, cst.BaseExpression]:
    facts = ModuleFacts(cst.parse_module(CLASS.format(expression)))
    call = next(call for call in facts.nodes(cst.Call) if tail(call.func) == "probe")
    return facts, call.args[0].value


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x", Place.DEVICE),
        ("first", Place.DEVICE),
        ("x[0]", Place.DEVICE),
        ("x.T", Place.DEVICE),
        ("x.view(-1)", Place.DEVICE),
        ("self.weight", Place.DEVICE),
        ("self.mean", Place.DEVICE),
        ("self.layer(x)", Place.DEVICE),
        ("self(x)", Place.DEVICE),
        ("self.encoder(x)", Place.DEVICE),
        ("torch.zeros_like(x)", Place.DEVICE),
        ("torch.zeros(3, device=x.device)", Place.DEVICE),
        ("torch.zeros(3).to(x)", Place.DEVICE),
        ("torch.cat([x, y])", Place.DEVICE),
        ("torch.zeros(3)", Place.FRESH),
        ("torch.zeros(*x.shape)", Place.FRESH),
        ("torch.arange(3) / self.scale", Place.FRESH),
        ("torch.zeros(3).to(torch.half)", Place.FRESH),
        ("torch.zeros(3)[None, :]", Place.FRESH),
        ("-torch.eye(3)", Place.FRESH),
        ("torch.tensor([1, 2])", Place.FRESH),
        ("torch.full((2,), 1.0)", Place.FRESH),
        ("torch.tensor(1.0)", Place.PLAIN),
        ("torch.zeros(())", Place.PLAIN),
        ("x.shape[0]", Place.PLAIN),
        ("x.size(0) + 1", Place.PLAIN),
        ("self.scale", Place.PLAIN),
        ("len(x)", Place.PLAIN),
        ("mask", Place.UNKNOWN),
        ("lengths", Place.UNKNOWN),
        ("x.cpu()", Place.UNKNOWN),
        ("torch.zeros(3)[0]", Place.UNKNOWN),
        ("torch.tensor(y)", Place.UNKNOWN),
        ("torch.full(size, 1.0)", Place.UNKNOWN),
        ("torch.zeros(3, **options)", Place.UNKNOWN),
        ("self.encoder(y)", Place.UNKNOWN),
        ("helper(x)", Place.UNKNOWN),
        ("x if mask else torch.zeros(3)", Place.UNKNOWN),
    ],
)
def test_where_a_value_lives(expression: str, expected: Place) -> None:
    assert place(*probe(expression)) is expected


@pytest.mark.parametrize(
    ("body", "partner"),
    [
        ("return x + t", "x"),
        ("return x > t", "x"),
        ("x += t", "x"),
        ("u = t.unsqueeze(0).float()\n        return u * self.weight", "self.weight"),
        ("return torch.cat((t, x))", "x"),
        ("return F.mse_loss(x, t)", "x"),
        ("return x.masked_fill(t, 0)", "x"),
        ("return t.mul(x)", "x"),
        ("return self.layer(t)", "self.layer"),
        ("return self.encoder(x, t)", "x"),
        ("return x + (t if mask else 0)", "x"),
        ("return x + t.to(x)", None),
        ("t = t.cuda()\n        return x + t", None),
        ("if x.is_cuda:\n            t = t.cuda()\n        return x + t", None),
        ("return x[t]", None),
        ("return x + t[0]", None),
        ("return x + t.sum()", None),
        ("return x + y + t", "x + y"),
        ("return y + t", None),
        ("return t", None),
        ("return t.tolist() + x", None),
        ("return self.helper(x, t)", None),
        ("return {'x': x, 't': t}", None),
        ("return x.size(0) == t", None),
    ],
)
def test_where_two_devices_meet(body: str, partner: str | None) -> None:
    source = CLASS.replace("probe({})", f"t = torch.zeros(3)\n        {body}")
    facts = ModuleFacts(cst.parse_module(source + "\n    def helper(self, x, t):\n        return x\n"))
    call = next(
        call for call in facts.nodes(cst.Call) if facts.code(call) == "torch.zeros(3)" and _in_forward(facts, call)
    )
    found = meeting(facts, call)
    assert (None if found is None else facts.code(found.partner)) == partner


def _in_forward(facts: ModuleFacts, call: cst.Call) -> bool:
    function = facts.function_of(call)
    return function is not None and function.name.value == "forward"


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("model.py", "RandomCrop", True),
        ("data/transforms.py", "Normalize", True),
        ("model.py", "Transformer", False),
        ("transformer.py", "Block", False),
        ("transforms/model.py", "Net", False),
    ],
)
def test_transforms_are_told_by_their_names(path: str, name: str, expected: bool) -> None:
    facts = ModuleFacts(cst.parse_module(textwrap.dedent("pass")), path)
    assert works_on_host(facts, name) is expected

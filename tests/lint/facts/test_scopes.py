"""Names resolved to what they were imported as."""

from __future__ import annotations

import libcst as cst
import pytest

from distlint.facts import ModuleFacts


def resolved(source: str) -> str | None:
    """What the function of the last call stands for."""
    facts = ModuleFacts(cst.parse_module(source))
    return facts.resolve(facts.nodes(cst.Call)[-1].func)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\ntorch.exp(x)", "torch.exp"),
        ("import torch.distributed\ntorch.distributed.barrier()", "torch.distributed.barrier"),
        ("import torch.distributed as d\nd.barrier()", "torch.distributed.barrier"),
        ("from torch import distributed as d\nd.barrier()", "torch.distributed.barrier"),
        ("from torch.distributed import barrier as b\nb()", "torch.distributed.barrier"),
        ("from .ops import f\nf()", ".ops.f"),
        ("from .. import ops\nops.f()", "..ops.f"),
        ("def f():\n    from a import g\n    g()", "a.g"),
        ("from a import g\ndef f():\n    g()", "a.g"),
        ("from a import g\ndef f(g):\n    g()", None),
        ("from a import g\ndef f():\n    g = 1\n    g()", None),
        ("from a import g\n[g() for g in xs]", None),
        ("from a import g\nclass A:\n    g = 1\n    def f(self):\n        g()", "a.g"),
        ("try:\n    from a import g\nexcept ImportError:\n    g = None\ng()", "a.g"),
        ("try:\n    import a as x\nexcept ImportError:\n    import b as x\nx.g()", "a.g"),
        ("import a\ng = a.b.g\ng()", "a.b.g"),
        ("g = g\ng()", None),
        ("def g(): pass\ng()", "<here>.g"),
        ("with open(p) as g:\n    g()", None),
        ("print()", "builtins.print"),
        ("from a import *\ng()", None),
        ("torch.exp(x)", "torch.exp"),
        ("import a\nif (a := 1):\n    a.f()", None),
    ],
)
def test_resolve(source: str, expected: str | None) -> None:
    assert resolved(source) == expected


def test_attributes_of_self() -> None:
    facts = ModuleFacts(
        cst.parse_module("class A:\n    def f(me, x):\n        me.a()\n        x.a()\n        me.a.b()\n")
    )
    assert [facts.self_attribute(call.func) for call in facts.nodes(cst.Call)] == ["a", None, None]


def test_nested_functions_see_the_method_around() -> None:
    facts = ModuleFacts(cst.parse_module("class A:\n    def f(self):\n        def g():\n            self.a()\n"))
    (call,) = facts.nodes(cst.Call)
    assert facts.self_attribute(call.func) == "a"
    owner = facts.owner(call)
    assert owner is not None
    assert owner.name == "A"

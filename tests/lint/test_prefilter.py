"""The prefilter may let too much pass, never too little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.engine import check_source
from distlint.facts import known, rank_names
from distlint.facts.stages import EVALUATION_HOOKS
from distlint.model import Rule
from distlint.prefilter import can_matter, has_local_definition, narrow
from distlint.rules import RULES

BAD = [(rule, example.source) for rule in RULES.values() for example in rule.bad]
SOURCES = [source for _, source in BAD] + [source for rule in RULES.values() for source in rule.good]
ALL = list(RULES.values())


@pytest.mark.parametrize(("rule", "source"), BAD)
def test_every_bad_example_passes(rule: Rule, source: str) -> None:
    assert can_matter(rule, source.encode())


LOOKING = [(rule, source) for rule, source in BAD if type(rule).can_report is not Rule.can_report]


@pytest.mark.parametrize(("rule", "source"), LOOKING)
def test_every_bad_example_passes_the_quick_look(rule: Rule, source: str) -> None:
    assert narrow([rule], source) == [rule]


@pytest.mark.parametrize("rule", {rule.code: rule for rule, _ in LOOKING}.values(), ids=lambda rule: rule.code)
def test_the_quick_look_stops_something(rule: Rule) -> None:
    assert narrow([rule], "import torch\nx = torch.zeros(3, device=y)\nz = list(map(lambda a: a, x))\n") == []


HIDDEN = [
    (
        "DL005",
        """\
from torch import nn
f = lambda x: x
class A(nn.Module):
    def __init__(self):
        self.f = f
""",
    ),
    (
        "DL003",
        """\
import torch
def make():
    t = torch.zeros(3)
    class A(torch.nn.Module):
        def __init__(self):
            self.t = t
        def forward(self, x):
            return x.cuda() + self.t
""",
    ),
    (
        "DL001",
        """\
import torch
class A(torch.nn.Module):
    def forward(self, x):
        return x.to(device=f"cuda")
""",
    ),
]


@pytest.mark.parametrize(("code", "source"), HIDDEN)
def test_the_quick_look_does_not_stop_roundabout_code(code: str, source: str) -> None:
    found = check_source(source.encode(), "x.py", [RULES[code]], prefilter=False)
    assert found
    assert check_source(source.encode(), "x.py", [RULES[code]]) == found


@settings(deadline=None)
@given(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3))
def test_findings_are_the_same_without(sources: list[str]) -> None:
    source = "\n".join(sources).encode()
    assert check_source(source, "x.py", ALL) == check_source(source, "x.py", ALL, prefilter=False)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_it_stops_something(rule: Rule) -> None:
    assert not can_matter(rule, b"import os\nprint(os.name)\n")


@pytest.mark.parametrize("name", sorted(known.FUNCTIONS))
def test_every_known_collective_has_a_token(name: str) -> None:
    module, _, last = name.rpartition(".")
    source = f"from {module} import {last}\nif rank == 0:\n    {last}()\n".encode()
    assert [found.code for found in check_source(source, "x.py", [RULES["DL101"]])] == ["DL101"]


@pytest.mark.parametrize("name", sorted({*rank_names.ZERO_FLAGS, *rank_names.FLAGS, *rank_names.RANKS}))
def test_every_known_rank_name_has_a_token(name: str) -> None:
    assert can_matter(RULES["DL101"], f"if self.{name}: distributed.barrier()".encode())


@pytest.mark.parametrize("name", sorted(rank_names.GUARD_DECORATORS))
def test_every_guarding_decorator_has_a_token(name: str) -> None:
    assert can_matter(RULES["DL101"], f"@{name}\ndef f(): distributed.barrier()".encode())


RECEIVED = [(receiver, name) for receiver, kind in known.RECEIVERS.items() for name in sorted(known.METHODS[kind])]


@pytest.mark.parametrize(("receiver", "name"), RECEIVED)
def test_every_known_method_has_a_token(receiver: str, name: str) -> None:
    source = f"def f({receiver}, rank):\n    if rank == 0:\n        {receiver}.{name}(x)\n".encode()
    assert [found.line for found in check_source(source, "x.py", [RULES["DL101"]])] == [3]


@pytest.mark.parametrize("name", sorted(known.TELLING_METHODS))
def test_every_telling_method_has_a_token(name: str) -> None:
    source = f"def f(x, rank):\n    if rank == 0:\n        x.{name}()\n".encode()
    assert [found.line for found in check_source(source, "x.py", [RULES["DL101"]])] == [3]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"def f():\n    def g():\n        pass\n", True),
        (b"class A:\n    def f(self):\n        pass\n\ndef g():\n    pass\n", False),
        (b"class A:\n\tdef f(self):\n\t\tclass B: pass\n", True),
        (b"if x:\n    def f():\n        pass\n    async def g():\n        pass\n", False),
        (b"def f():\n    if x:\n        async  def g():\n            pass\n", True),
    ],
)
def test_local_definitions_by_indentation(source: bytes, expected: bool) -> None:
    assert has_local_definition(source) is expected


@pytest.mark.parametrize("hook", sorted(EVALUATION_HOOKS))
@pytest.mark.parametrize("name", ["log", "log_dict"])
def test_every_evaluation_hook_has_a_token(hook: str, name: str) -> None:
    source = (
        f"import torchmetrics\nclass A(LightningModule):\n    def {hook}(self, batch):\n        self.{name}(batch)\n"
    )
    assert can_matter(RULES["DL202"], source.encode())
    assert can_matter(RULES["DL204"], source.encode())

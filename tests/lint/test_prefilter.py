"""The prefilter may let too much pass, never too little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.api import guard_decorator, name_effect
from distlint.api.tables import ATTRIBUTES, CONVENTIONS, ENVIRONMENT, FUNCTIONS, METHODS, TELLING
from distlint.engine import check_source
from distlint.model import Rule
from distlint.prefilter import can_matter
from distlint.rules import RULES

BAD = [(rule, example.source) for rule in RULES.values() for example in rule.bad]
SOURCES = [source for _, source in BAD] + [source for rule in RULES.values() for source in rule.good]
ALL = list(RULES.values())
DL101 = RULES["DL101"]


@pytest.mark.parametrize(("rule", "source"), BAD)
def test_every_bad_example_passes(rule: Rule, source: str) -> None:
    assert can_matter(rule, source.encode())


@settings(deadline=None)
@given(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3))
def test_findings_are_the_same_without(sources: list[str]) -> None:
    source = "\n".join(sources).encode()
    assert check_source(source, "x.py", ALL) == check_source(source, "x.py", ALL, prefilter=False)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_it_stops_something(rule: Rule) -> None:
    assert not can_matter(rule, b"import os\nprint(os.name)\n")


@pytest.mark.parametrize("name", sorted(name for name, effect in FUNCTIONS.items() if effect.kind == "collective"))
def test_every_known_collective_has_a_token(name: str) -> None:
    module, _, last = name.rpartition(".")
    source = f"from {module} import {last}\nif rank == 0:\n    {last}()\n".encode()
    assert [found.code for found in check_source(source, "x.py", [DL101])] == ["DL101"]


RECEIVED = [
    (receiver, name)
    for receiver, family in CONVENTIONS.items()
    for name, effect in METHODS[family].items()
    if effect.kind == "collective"
]


@pytest.mark.parametrize(("receiver", "name"), RECEIVED)
def test_every_known_method_has_a_token(receiver: str, name: str) -> None:
    assert can_matter(DL101, f"if rank == 0:\n    {receiver}.{name}(x)\n".encode())


@pytest.mark.parametrize("name", sorted(name for name, effect in TELLING.items() if effect.kind == "collective"))
def test_every_telling_method_has_a_token(name: str) -> None:
    source = f"def f(x, rank):\n    if rank == 0:\n        x.{name}()\n".encode()
    assert [found.line for found in check_source(source, "x.py", [DL101])] == [3]


PARTS = ("", "is_", "get_", "my_", "global_", "world_", "local_", "main", "master", "primary", "root", "chief", "rank")
PARTS += ("_zero", "_0", "_process", "_rank", "_id", "_worker", "_only", "on_", "only_")
VARYING = ("zero", "local_zero", "rank", "local_rank", "last")


@given(st.lists(st.sampled_from(PARTS), max_size=4).map("".join))
def test_every_name_of_a_rank_has_a_token(name: str) -> None:
    effect = name_effect(name)
    if guard_decorator(name) or (effect is not None and effect.kind in VARYING):
        assert can_matter(DL101, f"if self.{name}: distributed.barrier()".encode())


@pytest.mark.parametrize("name", sorted(name for names in (ATTRIBUTES, ENVIRONMENT) for name in names.items()))
def test_every_known_rank_has_a_token(name: tuple[str, str]) -> None:
    if name[1] in VARYING:
        assert can_matter(DL101, f"if self.{name[0]}: distributed.barrier()".encode())


@pytest.mark.parametrize(
    "hook", [f"{stage}_{kind}" for stage in ("validation", "test") for kind in ("step", "epoch_end")]
)
@pytest.mark.parametrize("name", ["log", "log_dict"])
def test_every_evaluation_hook_has_a_token(hook: str, name: str) -> None:
    source = (
        f"import torchmetrics\nclass A(LightningModule):\n    def {hook}(self, batch):\n        self.{name}(batch)\n"
    )
    assert can_matter(RULES["DL202"], source.encode())
    assert can_matter(RULES["DL204"], source.encode())

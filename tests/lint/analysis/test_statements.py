"""Control: early exits, loops, try, with, match, comprehensions; what they guard and what they make of names."""

from __future__ import annotations

import textwrap

import pytest

from distlint.analysis.formula import ZERO
from tests.lint.analysis.reading import analyse, guards, one_sided, only, value_of

NONE: list[str] = []


def in_function(body: str) -> str:
    return "def f(rank, loader, x):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("dist.barrier()", []),
        ("if rank == 0:\n    dist.barrier()", ["branch"]),
        ("if x:\n    dist.barrier()", []),
        ("if x:\n    pass\nelif rank == 0:\n    dist.barrier()", ["branch"]),
        ("if rank == 0:\n    pass\nelse:\n    dist.barrier()", ["branch"]),
        ("if rank != 0:\n    return\ndist.barrier()", ["exit return"]),
        ("if rank != 0:\n    return\nelse:\n    pass\ndist.barrier()", ["exit return"]),
        ("if rank == 0:\n    pass\nelse:\n    return\ndist.barrier()", ["exit return"]),
        ("if rank != 0:\n    raise ValueError\ndist.barrier()", []),
        ("if rank != 0:\n    if x:\n        return\ndist.barrier()", ["exit return"]),
        ("for a in x:\n    if rank != 0:\n        continue\n    dist.barrier()", ["exit continue"]),
        ("for a in x:\n    if rank != 0:\n        continue\ndist.barrier()", []),
        ("for a in x:\n    if rank != 0:\n        return\ndist.barrier()", ["exit return"]),
        ("for a in x:\n    dist.barrier()\n    if rank != 0:\n        break", ["for"]),
        ("while True:\n    dist.barrier()\n    if rank != 0:\n        break", ["while"]),
        ("rank == 0 and dist.barrier()", ["and"]),
        ("rank == 0 or dist.barrier()", ["and"]),
        ("x and dist.barrier()", []),
        ("dist.barrier() if rank == 0 else None", ["branch"]),
        ("[dist.barrier() for a in x if rank == 0]", ["branch"]),
        ("with open(x) as file:\n    if rank == 0:\n        dist.barrier()", ["branch"]),
        ("try:\n    if rank == 0:\n        dist.barrier()\nfinally:\n    pass", ["branch"]),
        ("match x:\n    case 1 if rank == 0:\n        dist.barrier()", ["branch"]),
        ("match rank:\n    case 0:\n        dist.barrier()", ["branch"]),
        ("match rank:\n    case 0:\n        return\ndist.barrier()", ["exit return"]),
        ("if (main := rank == 0):\n    dist.barrier()", ["branch"]),
        ("while rank == 0:\n    dist.barrier()", ["while"]),
        ("assert rank == 0\ndist.barrier()", []),
    ],
)
def test_what_guards_a_call(body: str, kinds: list[str]) -> None:
    assert guards(in_function(body)) == kinds


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("try:\n    dist.barrier()\nexcept OSError:\n    pass", ["try"]),
        ("try:\n    pass\nexcept OSError:\n    dist.barrier()", ["except"]),
        ("try:\n    pass\nfinally:\n    dist.barrier()", ["finally"]),
        ("try:\n    pass\nexcept OSError:\n    pass\nelse:\n    dist.barrier()", []),
        ("try:\n    pass\nexcept* OSError:\n    dist.barrier()", ["except"]),
        ("for a in x:\n    dist.barrier()", ["for"]),
        ("while x:\n    dist.barrier()", ["while"]),
        ("for a in x:\n    pass\nelse:\n    dist.barrier()", []),
        ("async def g():\n    async for a in x:\n        dist.barrier()", ["for"]),
        ("y = [dist.all_reduce(a) for a in x]", ["for"]),
    ],
)
def test_every_guard_has_its_kind(body: str, kinds: list[str]) -> None:
    assert [guard.kind for guard in only(in_function(body)).guards] == kinds


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n    dist.barrier()",
        "if rank != 0:\n    return\ndist.barrier()",
        "if not rank:\n    pass\nelse:\n    return\ndist.barrier()",
        "main = rank == 0\nif main:\n    dist.barrier()",
        "main = rank == 0\nother = not main\nif other:\n    return\ndist.barrier()",
        "if rank == 0 and x:\n    dist.barrier()",
        "for a in x:\n    if rank == 0:\n        dist.barrier()",
        "for a in x:\n    if rank == 0:\n        break\n    dist.barrier()",
        "while True:\n    if rank == 0:\n        break\n    dist.barrier()",
        "with x:\n    if rank == 0:\n        dist.barrier()",
        "def g():\n    if rank == 0:\n        dist.barrier()\ng()",
        "if rank == 0:\n    for a in x:\n        dist.barrier()",
        "try:\n    if rank == 0:\n        dist.barrier()\nexcept OSError:\n    pass",
        "match rank:\n    case 0:\n        dist.barrier()\n    case _:\n        pass",
        "match x:\n    case _ if rank == 0:\n        dist.barrier()",
        "y = dist.barrier() if rank == 0 else 1",
        "rank or dist.barrier()",
        "if x:\n    return\nif rank:\n    return\ndist.barrier()",
        "if rank == 0:\n    if x:\n        dist.barrier()\n    else:\n        dist.barrier()",
        "if rank == 0:\n    dist.barrier()\n    return\nprint()",
    ],
)
def test_ranks_part(body: str) -> None:
    assert one_sided(in_function(body)) == ["barrier"]


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()",
        "if rank == 0:\n    dist.barrier()\nif rank != 0:\n    dist.barrier()",
        "if rank == 0:\n    dist.barrier()\n    return\ndist.barrier()",
        "if rank != 0:\n    dist.barrier()\nx()\nif rank == 0:\n    dist.barrier()",
        "main = rank == 0\nif not main:\n    dist.barrier()\nx()\nif main:\n    dist.barrier()",
        "if rank == 0 or x:\n    dist.barrier()\nif rank and not x:\n    dist.barrier()",
        "if rank == 0:\n    raise ValueError\ndist.barrier()",
        "if dist.get_world_size() == 1:\n    return\ndist.barrier()",
        "if not dist.is_initialized():\n    return\ndist.barrier()",
        "for a in x:\n    if rank == 0:\n        continue\ndist.barrier()",
        "if rank == 0:\n    x()\ndist.barrier()",
        "match rank:\n    case 0:\n        dist.barrier()\n    case _:\n        dist.barrier()",
        "import sys\nif rank == 0:\n    sys.exit(1)\ndist.barrier()",
        "y = dist.barrier() if rank == 0 else dist.barrier()",
    ],
)
def test_ranks_stay_together(body: str) -> None:
    assert one_sided(in_function(body)) == []


@pytest.mark.parametrize(
    ("body", "is_local"),
    [
        ("y = 0\nif rank == 0:\n    y = 1", True),
        ("y = 0\nif x:\n    y = 1", False),
        ("y = 0\nfor a in x:\n    if rank == 0:\n        y = 1", True),
        ("y = 0\nwhile x:\n    y = rank", True),
        ("y = 0\nif rank == 0:\n    return\ny = 1", False),
        ("if rank == 0:\n    y = 1\nelse:\n    y = 2", True),
        ("y = 0\nif rank == 0:\n    z = 1", False),
        ("y = 0\nwith x as y:\n    y = rank", True),
        ("try:\n    y = rank\nexcept OSError:\n    y = 0", True),
        ("try:\n    return rank\nexcept OSError:\n    y = rank", True),
        ("y = 0\ntry:\n    pass\nexcept OSError:\n    return\nelse:\n    y = rank", True),
        ("match x:\n    case 1:\n        y = rank\n    case _:\n        y = 2", True),
        ("match x:\n    case [y, *z]:\n        pass", False),
        ("y = 0\n[y for y in range(rank)]", False),
        ("[(y := rank) for a in x]", True),
        ("y = rank\ny = 0", False),
        ("y = 0\nfor a in x:\n    if a:\n        break\n    y = rank", True),
        ("y = 0\nfor a in x:\n    z = y\n    y = rank\ny = z", True),
        ("y, *z = rank, 1, 2", True),
        ("y = z = rank", True),
        ("y: int = rank", True),
        ("y = 0\ny += rank", True),
    ],
)
def test_names_after_statements(body: str, is_local: bool) -> None:
    assert value_of(in_function(body), "y").is_local == is_local


def test_a_second_turn_knows_what_the_first_has_changed() -> None:
    body = """
        done = False
        while not done:
            dist.all_reduce(x)
            if rank == 0:
                done = check(x)
        """
    assert guards(in_function(body)) == ["while"]


def test_a_flag_that_is_reduced_each_turn_is_everybodys() -> None:
    body = """
        done = torch.tensor(0)
        while not done:
            if rank == 0:
                done = check(x)
            dist.broadcast(done, 0)
        """
    assert guards(in_function(body)) == []


def test_exits_of_a_loop_are_over_after_it_and_returns_are_not() -> None:
    source = in_function("for a in x:\n    if rank:\n        {}\ndist.barrier()")
    assert guards(source.format("break")) == []
    assert guards(source.format("continue")) == []
    assert guards(source.format("return")) == ["exit return"]


def test_a_call_in_a_loop_is_one_event() -> None:
    body = "for a in x:\n    for b in a:\n        while b:\n            dist.all_reduce(b)"
    assert only(in_function(body)).label == "all_reduce"


def test_where_every_way_has_ended_nothing_is_read() -> None:
    body = "if x:\n    return 1\nelse:\n    raise ValueError\ndist.barrier()"
    assert list(analyse(in_function(body)).events("collective")) == []


def test_nested_functions_and_classes_are_read_with_what_is_around_them() -> None:
    source = """
        def f():
            main = dist.get_rank() == 0
            class Inner:
                def g(self):
                    if main:
                        dist.barrier()
            def h():
                def deeper():
                    if main:
                        dist.all_reduce(1)
                return deeper
        """
    found = {event.label: event.guards[0].test.formula for event in analyse(source).events("collective")}
    assert found == {"barrier": ZERO, "all_reduce": ZERO}


def test_the_files_own_statements_are_read() -> None:
    assert guards("if dist.get_rank() == 0:\n    dist.barrier()\n") == ["branch"]
    assert guards("if __name__ == '__main__':\n    if dist.get_rank() == 0:\n        dist.barrier()\n") == ["branch"]

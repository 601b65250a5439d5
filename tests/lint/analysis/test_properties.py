"""Whatever is given to the interpreter: it comes to an end soon, raises nothing, and says the same twice."""

from __future__ import annotations

import ast
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distlint.analysis.interpreter import analyse
from distlint.analysis.sequences import divergences
from distlint.analysis.summaries import summaries
from distlint.syntax import index_source
from tests.lint.analysis.reading import HEAD

RELAXED = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])

NAMES = st.sampled_from(
    ["x", "y", "rank", "loader", "model", "self", "f", "g", "A", "dist", "accelerator", "os", "loss"]
)
ATTRIBUTES = st.sampled_from(["x", "append", "all_reduce", "get_rank", "is_main_process", "module", "shape", "update"])
CONSTANTS = st.sampled_from(["0", "-1", "'RANK'", "None", "True", "1.5", "...", "b''"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def shaped(shape: str, *parts: str) -> str:
        return shape.format(*parts)

    one = [
        "({})",
        "(not {})",
        "-({})",
        "[{}]",
        "({},)",
        "{{{}}}",
        "{{'k': {}}}",
        "f'{{{}}}'",
        "(lambda x: {})",
        "(w := {})",
    ]
    two = [
        "({} + {})",
        "({} % {})",
        "({} / {})",
        "({} and {})",
        "({} or {})",
        "({} == {})",
        "({} in {})",
        "({} is not {})",
        "({}, {})",
        "[{}, *{}]",
        "{{**{}, 'k': {}}}",
        "({})({})",
        "({})(*{})",
        "({})(k={})",
        "({})[{}]",
        "({})[{}:]",
        "[{} for x in {}]",
        "{{{} for x, y in {}}}",
        "list({} for x, *y in {})",
        "enumerate({}, {})",
        "zip({}, {})",
        "dist.all_reduce({}, {})",
        "dist.broadcast_object_list([{}], {})",
        "accelerator.prepare({}, {})",
    ]
    three = ["({} if {} else {})", "({} < {} < {})", "[{} for x in {} if {}]", "{{{}: {} for y in {}}}"]
    return st.one_of(
        st.builds(shaped, st.sampled_from(one), inner),
        st.builds(shaped, st.sampled_from(two), inner, inner),
        st.builds(shaped, st.sampled_from(three), inner, inner, inner),
        st.builds("({}).{}".format, inner, ATTRIBUTES),
        st.builds("({}).{}({})".format, inner, ATTRIBUTES, inner),
    )


EXPRESSIONS = st.recursive(st.one_of(NAMES, CONSTANTS), _wider, max_leaves=6)
TARGETS = st.sampled_from(["x", "y, z", "x, *y", "self.x", "x[0]", "x.y.z", "[x, y]", "(x, (y, z))", "rank"])
PATTERNS = st.sampled_from(["0", "1 | 2", "[x, *y]", "{'a': x, **y}", "A(x=1)", "str() as y", "None", "_", "-1", "x"])


def _block(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in "\n".join(lines).splitlines())


def _compound(blocks: st.SearchStrategy[list[str]]) -> st.SearchStrategy[str]:
    def filled(shape: str, expression: str, target: str, pattern: str, one: list[str], two: list[str]) -> str:
        return shape.format(e=expression, t=target, p=pattern, a=_block(one), b=_block(two))

    shapes = [
        "if {e}:\n{a}\nelse:\n{b}",
        "if {e}:\n{a}",
        "for {t} in {e}:\n{a}\nelse:\n{b}",
        "while {e}:\n{a}\nelse:\n{b}",
        "try:\n{a}\nexcept OSError as error:\n{b}\nelse:\n    pass\nfinally:\n    pass",
        "try:\n{a}\nfinally:\n{b}",
        "with {e} as {t}, {e}:\n{a}",
        "match {e}:\n    case {p} if {e}:\n    {a}\n    case _:\n    {b}",
        "def f(x, y=1, *z, rank=0, **w):\n{a}",
        "@rank_zero_only\nasync def g(rank, /, x):\n{a}",
        "class A(nn.Module):\n{a}\n    def f(self, x):\n    {b}",
        "class A(A):\n    @property\n    def x(self):\n    {a}\n    @staticmethod\n    def g(x):\n    {b}",
    ]
    return st.builds(filled, st.sampled_from(shapes), EXPRESSIONS, TARGETS, PATTERNS, blocks, blocks)


SIMPLE = st.one_of(
    EXPRESSIONS,
    st.builds("{} = {}".format, TARGETS, EXPRESSIONS),
    st.builds("x: int = {}".format, EXPRESSIONS),
    st.builds("x += {}".format, EXPRESSIONS),
    st.builds("return {}".format, EXPRESSIONS),
    st.builds("assert {}".format, EXPRESSIONS),
    st.builds("raise ValueError({})".format, EXPRESSIONS),
    st.sampled_from(
        ["break", "continue", "pass", "return", "del x", "import torch.distributed as dist", "dist.barrier()"]
    ),
    st.sampled_from(["from .. import f", "from unseen import *", "global x", "nonlocal y", "yield x", "await x"]),
)
BLOCKS = st.recursive(
    st.lists(SIMPLE, min_size=1, max_size=3),
    lambda inner: st.lists(st.one_of(SIMPLE, _compound(inner)), min_size=1, max_size=3),
    max_leaves=8,
)
PROGRAMS = st.lists(st.one_of(SIMPLE, _compound(BLOCKS)), min_size=1, max_size=4).map("\n".join)


def examine(source: str) -> list[str]:
    """All that the interpreter says of a source, as text."""
    index = index_source(source, "model.py", "model")
    analysis = analyse(index)
    found = [f"{event.node.lineno} {event.label} {event.guards} {event.result}" for event in analysis.events()]
    found += [repr(summary) for summary in summaries(index, analysis.reports)]
    for report in analysis.reports.values():
        parted = divergences(report.body, lambda atom: atom.varies >= 1, lambda step: True)
        found += [repr((each.atom, each.visit.step.place, each.reached)) for each in parted]
    return found


def _without_identity(texts: list[str]) -> list[str]:
    return [text.partition(" at 0x")[0] for text in texts]


@RELAXED
@given(PROGRAMS)
def test_any_program_is_read_and_the_same_is_said_twice(source: str) -> None:
    try:
        ast.parse(source)
    except SyntaxError:
        return
    assert _without_identity(examine(source)) == _without_identity(examine(source))


def test_the_programs_are_worth_it() -> None:
    """Most of them parse, and the interpreter has something to say of them."""
    parsed: list[bool] = []
    said: list[int] = []

    @settings(RELAXED, derandomize=True, database=None, max_examples=100)
    @given(PROGRAMS)
    def collect(source: str) -> None:
        try:
            ast.parse(source)
        except SyntaxError:
            parsed.append(False)
            return
        parsed.append(True)
        said.append(len(examine(source)))

    collect()
    assert sum(parsed) > len(parsed) / 2
    assert sum(1 for number in said if number) > len(said) / 6


@RELAXED
@given(PROGRAMS)
def test_a_test_turned_round_parts_ranks_alike(body: str) -> None:
    """``if rank == 0: A else: B`` and ``if rank != 0: B else: A``."""

    def steps(test: str, then: str, other: str) -> set[tuple[str, str]] | None:
        arms = f"if {test}:\n{_block([then])}\nelse:\n{_block([other])}"
        source = f"{HEAD}def h(rank, x, y, self):\n{_block([arms])}\n"
        try:
            ast.parse(source)
        except SyntaxError:
            return None
        analysis = analyse(index_source(source, "model.py", "model"))
        report = next(each for function, each in analysis.reports.items() if function.name == "h")
        parted = divergences(report.body, lambda atom: atom.text == "rank==0", lambda step: True)
        return {(each.visit.label, each.visit.step.place.text) for each in parted}

    barrier = "dist.barrier()"
    assert steps("rank == 0", body, barrier) == steps("rank != 0", barrier, body)


def _files(folder: Path, most: int) -> list[Path]:
    return sorted(folder.rglob("*.py"), key=lambda path: path.stat().st_size)[-most:]


STANDARD = Path(sysconfig.get_paths()["stdlib"])
LARGE = [*_files(STANDARD / "json", 5), *_files(STANDARD / "asyncio", 10), *_files(STANDARD / "unittest", 5)]
ODD = [path for name in ("grammar", "patma", "named_expressions", "unpack_ex", "generators", "with")
       if (path := STANDARD / "test" / f"test_{name}.py").exists()]  # fmt: skip


@pytest.mark.parametrize("path", [*LARGE, *ODD], ids=lambda path: path.name)
def test_real_files_are_read(path: Path) -> None:
    examine(path.read_text("utf-8"))


def _lines(line: str, head: str = "def f(x, rank, loader):\n") -> Callable[[int], str]:
    return lambda size: HEAD + head + "".join("    " + line.format(i=i, j=i + 1) + "\n" for i in range(size))


def _nested(line: str, deepest: int) -> Callable[[int], str]:
    """Towers of a depth, one beside the other."""

    def program(size: int) -> str:
        tower = "".join(f"{' ' * (depth + 1)}{line.format(i=depth)}\n" for depth in range(deepest))
        return HEAD + "".join(
            f"def f{n}(x, rank):\n{tower}{' ' * (deepest + 1)}dist.barrier()\n" for n in range(size // 10)
        )

    return program


GROWING = {
    "branches": _lines("if a{i}:\n        y{i} = g(x)"),
    "steps under tests": _lines("if a{i}:\n        dist.barrier()"),
    "steps under tests of the rank": _lines("if rank == {i}:\n        dist.barrier()"),
    "early exits": _lines("if x == {i}:\n        return g(x)"),
    "loops": _lines("for a{i} in x:\n        y{i} = a{i}"),
    "tries": _lines("try:\n        y{i} = a{i}\n    except OSError:\n        z{i} = 1"),
    "flags set from themselves": _lines("x = (x and p{i}) if x else (not x or q{i})"),
    "flags of the rank": _lines("rank = (rank == 0 and p{i}) if rank else not rank"),
    "pairs of pairs": _lines("x = (x, x)"),
    "appends to appends": _lines("y" + ".append({i})" * 7),
    "calls that double": _lines(
        "\n\ndef f{j}(a):\n    f{i}(a)\n    f{i}(not a)", "def f0(a):\n    if a:\n        dist.barrier()\n"
    ),
    "calls in a ring": _lines(
        "\n\ndef f{j}(a):\n    if a:\n        dist.barrier()\n    f{i}(a)", "def f0(a):\n    f20(a)\n"
    ),
    "formulas through calls": _lines(
        "\n\ndef f{j}(a, b=0):\n    return f{i}(a) and f{i}(b) or f{i}(a == b)", "def f0(a):\n    return a\n"
    ),
    "attributes": _lines("def m{i}(self):\n        self.a{i} = self.a{j}\n        self.m{j}()", "class A:\n"),
    "closures": _lines("def g{j}(y):\n        return g{i}(x + y)"),
    "branches in branches": _nested("if a{i}:", 40),
    "loops in loops": _nested("for a{i} in x:", 18),
    "whiles in whiles": _nested("while a{i}:", 40),
    "functions in functions": _nested("def g{i}():", 40),
}  # fmt: skip


@pytest.mark.parametrize("program", GROWING.values(), ids=GROWING)
def test_time_grows_with_the_file(program: Callable[[int], str]) -> None:
    """Ten times the size may take thirty times as long; what doubles with each line never ends."""
    small, large = program(20), program(200)
    examine(small)
    began = time.process_time()
    examine(small)
    least = max(0.01, time.process_time() - began)
    began = time.process_time()
    examine(large)
    assert time.process_time() - began < 30 * least + 2


@pytest.mark.parametrize(
    "source",
    [
        "x = (" + " + ".join(["'a'"] * 900) + ")",
        "if a:\n    pass\n" + "".join(f"elif x == {number}:\n    g()\n" for number in range(200)),
        "x = [" + ", ".join("a if b else c" for _ in range(3000)) + "]",
        "x = {" + ", ".join(f"{number}: ({number}, [1, 2])" for number in range(3000)) + "}",
        "x = f" + "(y)" * 90,
        "x = y" + ".a(1)" * 150,
        "x = " + "[" * 90 + "y" + "]" * 90,
    ],
    ids=["sum", "elif", "wide line", "table", "calls of calls", "chain", "lists in lists"],
)
def test_deep_and_wide_expressions_are_read(source: str) -> None:
    began = time.process_time()
    examine(source)
    assert time.process_time() - began < 5

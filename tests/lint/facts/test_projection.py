"""DL101 against an interpreter: random programs, run for every kind of rank and every outcome of the other tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.lint.helpers import lines

OPERATIONS = ("barrier", "all_reduce")
FLAGS = ("f0", "f1")


@dataclass(frozen=True)
class Do:
    """A collective, or a way out."""

    what: str


@dataclass(frozen=True)
class If:
    """A branch on the rank or on a flag that is the same everywhere."""

    test: str
    then: tuple[Node, ...]
    orelse: tuple[Node, ...]


@dataclass(frozen=True)
class Loop:
    """A number of turns that is the same everywhere, and another for every loop."""

    body: tuple[Node, ...]


Node = Do | If | Loop
SIMPLE = st.sampled_from([*map(Do, OPERATIONS), Do("return"), Do("print")])


def blocks(inside: st.SearchStrategy[Node]) -> st.SearchStrategy[tuple[Node, ...]]:
    return st.lists(inside, min_size=1, max_size=3).map(tuple)


def compound(inside: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    tests = st.sampled_from(["rank == 0", "rank != 0", *FLAGS])
    branches = st.builds(If, tests, blocks(inside), st.just(()) | blocks(inside))
    return branches | st.builds(Loop, blocks(inside | st.just(Do("continue"))))


PROGRAMS = blocks(st.recursive(SIMPLE, compound, max_leaves=7))


def loops(program: tuple[Node, ...]) -> Iterator[Loop]:
    """Every loop of the program, by identity."""
    for node in program:
        if isinstance(node, If):
            yield from loops(node.then + node.orelse)
        elif isinstance(node, Loop):
            yield node
            yield from loops(node.body)


def write(program: tuple[Node, ...], indent: str = "    ") -> Iterator[str]:
    """The program as Python."""
    for node in program:
        if isinstance(node, Do):
            yield indent + (node.what if node.what in ("return", "continue") else f"dist.{node.what}()")
        elif isinstance(node, If):
            yield f"{indent}if {node.test}:"
            yield from write(node.then, indent + "    ")
            if node.orelse:
                yield f"{indent}else:"
                yield from write(node.orelse, indent + "    ")
        else:
            yield f"{indent}for _ in turns():"
            yield from write(node.body, indent + "    ")


def run(program: tuple[Node, ...], world: dict[str | int, int], made: list[str]) -> str:
    """Make the program's collectives; how it was left: at its end, by continue or by return."""
    for node in program:
        way = "end"
        if isinstance(node, Do):
            if node.what in ("return", "continue"):
                return node.what
            if node.what in OPERATIONS:
                made.append(node.what)
        elif isinstance(node, If):
            way = run(node.then if world[node.test] else node.orelse, world, made)
        else:
            for _ in range(world[id(node)]):
                if run(node.body, world, made) == "return":
                    return "return"
        if way != "end":
            return way
    return "end"


def hangs(program: tuple[Node, ...], *, alike: bool) -> bool:
    """Whether in any world two ranks make different collectives.

    Args:
        program: what both run.
        alike: whether all loops turn once. A loop of one side alone that meets a single call of the other
            is left alone otherwise: how often it turns is not known.
    """
    turns = [id(loop) for loop in loops(program)]
    counts = [(each,) * len(turns) for each in (1,)] if alike else product((0, 2), repeat=len(turns))
    for flags, count in product(product((0, 1), repeat=len(FLAGS)), list(counts)):
        made: list[list[str]] = [[], []]
        for rank in (0, 1):
            world = dict(zip((*FLAGS, *turns), (*flags, *count), strict=True))
            run(program, {**world, "rank == 0": rank == 0, "rank != 0": rank != 0}, made[rank])
        if made[0] != made[1]:
            return True
    return False


def reported(program: tuple[Node, ...]) -> bool:
    source = "\n".join(["import torch.distributed as dist", "def f(rank, f0, f1):", *write(program)])
    return bool(lines(source, "DL101"))


def reported_of_data(program: tuple[Node, ...]) -> list[int]:
    """The lines that DL103 reports where the same program asks its batch instead of its rank."""
    head = [
        "import torch.distributed as dist",
        "class Model(LightningModule):",
        "    def training_step(self, batch, batch_idx):",
    ]
    body = [*write(program, "        ")]
    source = "\n".join([*head, *body])
    return lines(source.replace("rank == 0", "batch.any()").replace("rank != 0", "not batch.any()"), "DL103")


BARRIER = Do("barrier")


@settings(max_examples=400, deadline=None, derandomize=True)
@given(PROGRAMS)
@example((If("rank != 0", (BARRIER,), ()), If("rank == 0", (BARRIER,), ())))
@example((If("f0", (If("rank != 0", (Do("return"),), ()),), ()), BARRIER))
@example((Loop((If("rank == 0", (Do("return"),), ()),)), BARRIER))
@example((Loop((BARRIER, Loop((If("rank == 0", (Do("return"),), ()),)))),))
def test_every_hang_is_reported(program: tuple[Node, ...]) -> None:
    if hangs(program, alike=True):
        assert reported(program)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(PROGRAMS)
@example((If("rank == 0", (If("f0", (BARRIER,), ()),), (If("f0", (BARRIER,), ()),)),))
def test_nothing_else_is_reported(program: tuple[Node, ...]) -> None:
    assume(not any(Do("return") in loop.body for loop in loops(program)))  # such a loop is none
    assume(not any(flag in "".join(write(loop.body)) for loop in loops(program) for flag in FLAGS))
    if reported(program):
        assert hangs(program, alike=False)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(PROGRAMS)
def test_a_guard_of_data_is_followed_like_one_of_the_rank(program: tuple[Node, ...]) -> None:
    source = "\n".join(["import torch.distributed as dist", "", "def f(rank, f0, f1):", *write(program)])
    assert reported_of_data(program) == lines(source, "DL101")

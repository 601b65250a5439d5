"""Where the ways of ranks part: which step, on which side, under which test; alike whichever way a test is written."""

from __future__ import annotations

import textwrap

import pytest

from distlint.analysis.formula import DATA
from tests.lint.analysis.reading import one_sided, parted


def test_the_step_the_side_and_the_test_are_told() -> None:
    (found,) = parted("def f(rank):\n    if rank == 0:\n        dist.barrier()\n")
    assert (found.atom.text, found.visit.label, found.reached, found.instead) == ("rank==0", "barrier", True, None)
    (found,) = parted("def f(rank):\n    if rank == 0:\n        return\n    dist.barrier()\n")
    assert (found.atom.text, found.visit.label, found.reached) == ("rank==0", "barrier", False)
    assert found.visit.guard is not None
    assert found.visit.guard.place.text == "rank == 0"


def test_what_others_do_instead_is_told() -> None:
    body = "    if rank == 0:\n        dist.barrier()\n    else:\n        dist.all_reduce(x)\n"
    (found,) = parted(f"def f(rank, x):\n{body}")
    assert found.instead is not None
    assert {found.visit.label, found.instead.label} == {"barrier", "all_reduce"}


def test_the_same_calls_in_another_order_part() -> None:
    source = """
        def f(rank, x):
            if rank == 0:
                dist.barrier()
                dist.all_reduce(x)
            else:
                dist.all_reduce(x)
                dist.barrier()
        """
    assert parted(source)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("rank == 0", "rank != 0"),
        ("not rank", "rank"),
        ("rank == 0 and x", "not (rank == 0 and x)"),
        ("rank == 0 or x", "rank != 0 and not x"),
        ("is_main_process()", "not is_main_process()"),
        ("x > 0", "not x > 0"),
        ("x", "not x"),
    ],
)
@pytest.mark.parametrize(
    ("then", "other"),
    [
        ("dist.barrier()", "pass"),
        ("pass", "dist.barrier()"),
        ("return", "dist.all_reduce(x)"),
        ("dist.barrier()", "dist.all_reduce(x)"),
        ("raise ValueError", "dist.barrier()"),
        ("dist.barrier()", "dist.barrier()"),
        ("for a in x:\n    dist.barrier()", "dist.barrier()"),
    ],
)
def test_a_test_and_its_opposite_part_alike(first: str, second: str, then: str, other: str) -> None:
    def written(test: str, one: str, two: str) -> set[tuple[str, str]]:
        arms = f"if {test}:\n{textwrap.indent(one, '    ')}\nelse:\n{textwrap.indent(two, '    ')}\ndist.barrier()"
        source = f"def f(rank, x):\n{textwrap.indent(arms, '    ')}\n"
        return {(found.visit.label, found.visit.step.place.text) for found in parted(source, least=1)}

    assert written(first, then, other) == written(second, other, then)


def test_a_test_of_the_step_counter_inside_and_outside() -> None:
    inside = "def f(rank, step):\n    if rank == 0 and step % 9 == 0:\n        dist.barrier()\n"
    apart = "def f(rank, step):\n    if step % 9 == 0:\n        if rank == 0:\n            dist.barrier()\n"
    either = "def f(rank, sharded):\n    if sharded or rank == 0:\n        dist.barrier()\n"
    assert one_sided(inside) == one_sided(apart) == one_sided(either) == ["barrier"]


def test_two_tests_of_one_thing_go_together() -> None:
    source = """
        def f(rank, cfg, x):
            if cfg.deep and rank == 0:
                dist.barrier()
            x()
            if cfg.deep and rank != 0:
                dist.barrier()
        """
    assert one_sided(source) == []
    assert one_sided(source.replace("cfg.deep and rank != 0", "cfg.deep and rank == 1")) == ["barrier"]


def test_a_loop_that_some_leave_earlier_parts() -> None:
    source = """
        def f(rank, x):
            while True:
                dist.barrier()
                if {test}:
                    break
        """
    assert parted(source.format(test="rank == 0"))
    assert not parted(source.format(test="x"))


def test_data_tests_are_asked_for_apart() -> None:
    source = """
        def f(model, loader):
            for batch in loader:
                loss = model(batch)
                if torch.isnan(loss):
                    continue
                dist.all_reduce(loss)
        """
    assert one_sided(source) == []
    assert one_sided(source, least=DATA) == ["all_reduce"]


def test_many_tests_are_still_compared() -> None:
    """Of too many ways some are left out, and a step under a plain test is found all the same."""
    many = "".join(f"    if a{number}:\n        dist.all_reduce(x)\n" for number in range(60))
    early = "".join(f"    if b{number}:\n        return\n" for number in range(60))
    for before in (many, early, many + early):
        source = f"def f(rank, x):\n{before}    if rank == 0:\n        dist.barrier()\n"
        assert one_sided(source) == ["barrier"]
        assert one_sided(source.replace("if rank == 0", "if a0 and rank == 0 and not a7")) == ["barrier"]


def test_all_of_many_steps_are_found() -> None:
    many = "".join(f"    if rank == {number}:\n        dist.barrier()\n" for number in range(20))
    found = parted(f"def f(rank):\n{many}")
    assert sorted({each.visit.step.place.line for each in found}) == list(range(6, 46, 2))
    for each in found:
        assert each.atom.text == each.visit.guard.place.text.replace(" ", "")  # type: ignore[union-attr]

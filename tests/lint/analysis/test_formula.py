"""Conditions: what is one test, what is always so, and what becomes of large ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.analysis.formula import (
    FALSE,
    LOCAL_ZERO,
    TRUE,
    ZERO,
    Atom,
    Formula,
    atoms,
    every,
    is_true,
    negate,
    some,
    substitute,
    varies,
)
from tests.lint.analysis.reading import value

P, Q = Atom("p", parameter="p", owner="f"), Atom("q", parameter="q", owner="f")
FORMULAS = st.recursive(
    st.sampled_from([Atom(text) for text in "abcd"] + [TRUE, FALSE]),
    lambda inside: st.one_of(
        inside.map(negate), st.lists(inside, max_size=3).map(every), st.lists(inside, max_size=3).map(some)
    ),
    max_leaves=12,
)


def table(formula: Formula) -> list[bool]:
    """Its answers for all answers of four atoms."""
    every_way = itertools.product((False, True), repeat=4)
    return [is_true(formula, dict(zip("abcd", way, strict=True))) for way in every_way]


@given(FORMULAS)
def test_negation_answers_the_opposite_and_twice_the_same(formula: Formula) -> None:
    assert table(negate(formula)) == [not answer for answer in table(formula)]
    assert table(negate(negate(formula))) == table(formula)


@given(st.lists(FORMULAS, max_size=4))
def test_all_and_any_answer_as_python_does(parts: list[Formula]) -> None:
    answers = [table(part) for part in parts]
    assert table(every(parts)) == [all(row) for row in zip(*answers, strict=True)] if parts else [True]
    assert table(some(parts)) == [any(row) for row in zip(*answers, strict=True)] if parts else [False]


def test_a_flag_that_is_set_from_itself_does_not_grow_for_ever() -> None:
    flag: Formula = ZERO
    for number in range(500):
        flag = some([every([flag, Atom(f"a{number}")]), every([negate(flag), Atom(f"b{number}")])])
    assert len(list(atoms(flag))) <= 64
    assert varies(flag) == varies(ZERO)


def test_large_formulas_that_differ_are_not_taken_for_one() -> None:
    many: list[Formula] = [Atom(f"a{number}") for number in range(40)]
    one, other = every(many), every([*many[:-1], Atom("z")])
    assert isinstance(one, Atom)
    assert one != other
    assert every(many) == one


def test_parameters_are_replaced_by_what_a_call_gives() -> None:
    assert substitute(every([P, Q]), {"p": ZERO}, "f") == every([ZERO, Q])
    assert substitute(negate(P), {"p": negate(ZERO)}, "f") == ZERO
    assert substitute(P, {"p": ZERO}, "another") == P


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0",
        "0 == rank",
        "not rank",
        "rank < 1",
        "rank <= 0",
        "1 > rank",
        "rank in (0, -1)",
        "rank in [0]",
        "rank in {-1, 0}",
        "not (rank > 0)",
        "not rank != 0",
        "rank is 0",
        "dist.get_rank() == 0",
        "not dist.get_rank()",
        "dist.get_rank(group=None) == 0",
        "torch.distributed.get_rank() == 0",
        "int(os.environ['RANK']) == 0",
        "int(os.environ.get('RANK', 0)) == 0",
        "int(os.getenv('RANK', '0')) == 0",
        "int(os.environ['SLURM_PROCID']) == 0",
        "os.environ['RANK'] == '0'",
        "accelerator.is_main_process",
        "trainer.is_global_zero",
        "self.trainer.is_global_zero",
        "trainer.global_rank == 0",
        "trainer.is_world_process_zero()",
        "is_main_process()",
        "is_rank_zero",
        "bool(rank == 0)",
        "(rank == 0) == True",
        "(rank == 0) is True",
        "not (rank == 0) == False",
        "True if rank == 0 else False",
        "rank == 0 and dist.is_initialized()",
        "not dist.is_initialized() or dist.get_rank() == 0",
        "dist.get_world_size() > 1 and rank == 0",
        "rank == 0 or rank == 0",
    ],
)
def test_a_test_for_the_first_rank_is_one_in_all_spellings(test: str) -> None:
    assert value(test).formula == ZERO
    assert value(f"not ({test})").formula == negate(ZERO)


@pytest.mark.parametrize(
    "test",
    ["local_rank == 0", "not local_rank", "int(os.environ['LOCAL_RANK']) == 0", "dist.get_node_local_rank() == 0"],
)
def test_the_first_rank_of_a_machine_is_another_one(test: str) -> None:
    assert value(test).formula == LOCAL_ZERO


@pytest.mark.parametrize("test", ["rank >= 0", "rank > -1", "rank != -1", "rank is not None", "world_size > 1"])
def test_what_holds_on_every_rank_of_several(test: str) -> None:
    assert value(test).formula == TRUE


@pytest.mark.parametrize("test", ["rank == 1", "rank == world_size - 1", "rank % 2 == 0", "rank == last", "rank > 3"])
def test_other_tests_of_the_rank_are_ranks_own(test: str) -> None:
    found = value(test)
    assert found.is_rank
    assert found.formula not in (ZERO, negate(ZERO), TRUE, FALSE)


@pytest.mark.parametrize("test", ["step == 0", "ranking == 0", "a.shape[0] == 0", "os.environ['HOME'] == '0'"])
def test_other_tests_are_not_ranks_own(test: str) -> None:
    assert not value(test).is_local


def test_opposite_spellings_are_opposite() -> None:
    for test, opposite in (("a == b", "a != b"), ("a is None", "a is not None"), ("a in b", "a not in b")):
        one, other = value(test).formula, value(opposite).formula
        assert one is not None
        assert other == negate(one)

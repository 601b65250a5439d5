"""What other files are told of a function: its collectives and whether it tells the rank, and nothing of its syntax."""

from __future__ import annotations

import pickle

import pytest

from distlint.analysis import Summary
from distlint.analysis.formula import ZERO
from tests.lint.analysis.reading import analyse, one_sided, told, value_of

HELPERS = """
    def meet(is_first=True):
        if is_first:
            dist.barrier()

    def deep():
        for a in b:
            try:
                meet()
            except OSError:
                pass

    def first():
        return dist.get_rank() == 0

    def rank():
        return dist.get_rank()

    def plain(x):
        return x + 1

    class Saver:
        def save(self, path):
            dist.barrier()

        @staticmethod
        def now(path):
            dist.barrier()

    @rank_zero_only
    def only_first():
        dist.barrier()
    """


@pytest.fixture(scope="module")
def others() -> dict[str, Summary]:
    return told(analyse(HELPERS, name="helpers"))


def test_functions_that_matter_are_told_and_others_are_not(others: dict[str, Summary]) -> None:
    names = {"meet", "deep", "first", "rank", "Saver.save", "Saver.now", "only_first"}
    assert set(others) == {f"helpers.{name}" for name in names}
    assert others["helpers.Saver.save"].parameters == ("path",)
    assert others["helpers.Saver.now"].parameters == ("path",)


def test_summaries_travel_between_processes(others: dict[str, Summary]) -> None:
    assert pickle.loads(pickle.dumps(others)) == others
    assert len(pickle.dumps(others)) < 20_000


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n        meet()",
        "meet(rank == 0)",
        "meet(is_first=not rank)",
        "if first():\n        deep()",
        "if not first():\n        return\n    deep()",
        "if rank_of() == 0:\n        meet()",
        "first() and meet()",
        "only_first()",
    ],
)
def test_a_guard_in_one_file_and_a_collective_in_another(body: str, others: dict[str, Summary]) -> None:
    imports = "from helpers import meet, deep, first, only_first, rank as rank_of\n"
    assert one_sided(f"{imports}def f(rank):\n    {body}\n", others) == ["barrier"]


def test_modules_are_followed_as_well(others: dict[str, Summary]) -> None:
    for imports, call in (("import helpers", "helpers.meet()"), ("import helpers as h", "h.deep()")):
        assert one_sided(f"{imports}\ndef f(rank):\n    if rank == 0:\n        {call}\n", others) == ["barrier"]


def test_what_is_given_and_what_is_not_is_told_apart(others: dict[str, Summary]) -> None:
    for call in ("meet(True)", "meet(x)", "meet(False) if rank == 0 else 0", "plain(rank)"):
        assert one_sided(f"from helpers import meet, plain\ndef f(rank, x):\n    {call}\n", others) == []


def test_a_chain_of_files(others: dict[str, Summary]) -> None:
    source = "import helpers\ndef again():\n    helpers.deep()\ndef is_zero():\n    return helpers.first()\n"
    index = analyse(source, others, name="between")
    more = others | told(index)
    last = "import between\ndef f():\n    if between.is_zero():\n        between.again()\n"
    assert one_sided(last, more) == ["barrier"]


def test_an_imported_function_of_a_telling_name_is_believed_if_it_cannot_be_seen() -> None:
    source = (
        "from unseen import is_main_process, get_rank\ndef f():\n    x = is_main_process()\n    y = get_rank() == 0\n"
    )
    assert value_of(source).formula == value_of(source, "y").formula == ZERO

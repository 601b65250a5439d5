"""What evaluation reaches: the outcome of tests of the stage is never another one than Python's."""

from __future__ import annotations

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.averageable import stem
from distlint.facts import ModuleFacts
from distlint.facts.stages import Stages, tells_stage

KNOWN: dict[str, str | bool | None] = {"stage": "val", "train": False, "log": True, "prefix": None}
WORDS = ("train", "val", "test")

_compared = st.builds("stage {} {!r}".format, st.sampled_from(("==", "!=", "in", "not in")), st.sampled_from(WORDS))
_listed = st.builds("stage {} ({!r}, {!r})".format, st.sampled_from(("in", "not in")), *[st.sampled_from(WORDS)] * 2)
_begun = st.builds("stage.startswith({!r})".format, st.sampled_from(("t", "v", "val")))
_atoms = st.one_of(_compared, _listed, _begun, st.sampled_from(("train", "log", "prefix", "prefix is None", "other")))
TESTS = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(TESTS, st.booleans())
def test_an_outcome_is_the_one_of_python(test: str, other: bool) -> None:
    stages = Stages(ModuleFacts(cst.parse_module("")))
    outcome = stages.decide(cst.parse_expression(test), KNOWN)
    assert outcome is None or outcome is bool(eval(test, {}, {**KNOWN, "other": other}))


@settings(deadline=None)
@given(TESTS)
def test_without_what_cannot_be_known_there_is_an_outcome(test: str) -> None:
    stages = Stages(ModuleFacts(cst.parse_module("")))
    known = stages.decide(cst.parse_expression(test), KNOWN)
    assert known is not None or "other" in test or "in '" in test  # a part of a word: not worth knowing


@pytest.mark.parametrize("test", ["stage", "self.training", "is_train", "split == x", "x == 'val/'"])
def test_tests_that_tell_the_stage(test: str) -> None:
    assert tells_stage(cst.parse_expression(test))


@pytest.mark.parametrize("test", ["batch_idx % 10 == 0", "self.validation_outputs", "x == 'mean'", "self.stages"])
def test_tests_of_something_else(test: str) -> None:
    assert not tells_stage(cst.parse_expression(test))


@settings(deadline=None)
@given(st.lists(st.sampled_from(("binary", "multiclass", "f1", "score", "loss", "roc", "curve", "auc")), max_size=4))
def test_the_stem_of_a_name_does_not_depend_on_its_style(words: list[str]) -> None:
    snake, camel = "_".join(words), "".join(word.title() for word in words)
    assert stem(snake) == stem(camel)

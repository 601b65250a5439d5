"""The names of metrics do not depend on the style of a library."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.averageable import stem


@settings(deadline=None)
@given(st.lists(st.sampled_from(("binary", "multiclass", "f1", "score", "loss", "roc", "curve", "auc")), max_size=4))
def test_the_stem_of_a_name_does_not_depend_on_its_style(words: list[str]) -> None:
    snake, camel = "_".join(words), "".join(word.title() for word in words)
    assert stem(snake) == stem(camel)

"""Entries of a dict that goes through calls which cannot be seen: which of them a call has made, nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.tree import is_name, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


def is_passed_through(facts: ModuleFacts, node: cst.Subscript, is_local: Callable[[cst.Name], bool]) -> bool:
    """A key of a dict that an unseen call was given and gave back, ``info = step(model, batch, info)``.

    The entry may be made of the batch, or it was there before, as a setting is.

    Args:
        facts: the module.
        node: ``info["key"]``.
        is_local: whether a name is wholly of this rank's data: such a dict is not mixed by a call.
    """
    index = node.slice[0].slice
    if not isinstance(node.value, cst.Name) or not isinstance(index, cst.Index) or text_of(index.value) is None:
        return False
    return _is_mixed(facts, node.value, is_local)


def _is_mixed(facts: ModuleFacts, name: cst.Name, is_local: Callable[[cst.Name], bool]) -> bool:
    """Whether a name was given to the call that it is the result of, and was not all local data before."""
    for definition in reaching(facts, name):
        call = definition.value
        if definition.steps or not isinstance(call, cst.Call) or facts.local_function(call) is not None:
            continue
        for arg in call.args:
            given = arg.value
            if isinstance(given, cst.Name) and is_name(given, name.value):
                return _is_mixed(facts, given, is_local) or not is_local(given)
    return False

"""What the calls and attributes of torch and the frameworks do, as plain tables."""

from distlint.api.axes import axis_of_name, have_in_common, is_dimension, is_named
from distlint.api.effects import Effect, collective
from distlint.api.lookup import (
    attribute_effect,
    base_family,
    brings_together,
    environment_kind,
    family_of,
    function_effect,
    guard_decorator,
    is_first_fsdp,
    method_effect,
    name_effect,
    named_family,
    names_loss,
    stops_gradients,
    unbound,
    was_brought_together,
)

__all__ = [
    "Effect",
    "attribute_effect",
    "axis_of_name",
    "base_family",
    "brings_together",
    "collective",
    "environment_kind",
    "family_of",
    "function_effect",
    "guard_decorator",
    "have_in_common",
    "is_dimension",
    "is_first_fsdp",
    "is_named",
    "method_effect",
    "name_effect",
    "named_family",
    "names_loss",
    "stops_gradients",
    "unbound",
    "was_brought_together",
]

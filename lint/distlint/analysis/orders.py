"""In which order a value's elements come, where that is one process's own affair."""

from __future__ import annotations

from distlint.analysis.value import Value


def order_of(elements: tuple[Value, ...]) -> str:
    """Return the order of a set of these: numbers have the same hash in every process, strings have not."""
    if elements and all(isinstance(each.constant, int | float) for each in elements):
        return ""
    return "texts" if elements and all(isinstance(each.constant, str) for each in elements) else "set"


def order_of_set(values: tuple[Value, ...]) -> str:
    """Return the order of ``set(...)``: "" where it is empty, of a range, or differs from rank to rank anyway."""
    if not values or values[0].family == "range" or values[0].is_local:
        return ""
    if values[0].elements:
        return order_of(values[0].elements)
    return values[0].order if values[0].order == "texts" else "set"


def order_of_sets(*values: Value) -> str:
    """Return the order of what an operation makes of sets and views of keys; "" if these are none."""
    orders = {value.order for value in values}
    if orders == {"texts"}:
        return "texts"
    is_set = not orders.isdisjoint({"set", "texts"}) or any(value.family == "keys" for value in values)
    return "set" if is_set else ""

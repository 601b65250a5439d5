"""Programs of a few lines that show a violation again, and shards as text."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from distmetrics.testing.laws import Law
from distmetrics.testing.rows import Batch
from distmetrics.testing.trial import Shards

_LONG = 400  # characters of a shard in a report


def shown(shards: Shards) -> tuple[str, ...]:
    """Write each rank's batches."""
    texts = [", ".join(map(_batch, shard)) or "no data" for shard in shards]
    return tuple(text if len(text) <= _LONG else f"{text[: _LONG - 1]}…" for text in texts)


def snippet(make: Any, shards: Shards, law: Law, sync: str, backend: str) -> str:
    """Write a program of at most 15 lines that judges one law on these shards again."""
    source, imports = _maker(make)
    rows = _rows(shards)
    options = "".join(
        f', {name}="{value}"'
        for name, value, usual in (("sync", sync, "distmetrics"), ("backend", backend, "threads"))
        if value != usual
    )
    batch = "Batch, " if any("Batch(" in row for row in rows) else ""
    needs = [f"from distmetrics.testing import {batch}laws, replay", *imports]
    if any("torch." in row for row in (*rows, source)):
        needs.insert(0, "import torch")
    if any(word in row for row in rows for word in ("nan", "inf")):
        needs.insert(0, "from math import inf, nan")
    name = law.name.upper().replace("-", "_")
    return "\n".join([
        *needs,
        "",
        f"make = {source}",
        "shards = [  # of each rank its updates",
        *rows,
        "]",
        f"print(replay(make, shards, law=laws.{name}{options}))",
    ])  # fmt: skip


def _rows(shards: Shards) -> list[str]:
    """Write one line a rank; many ranks share lines."""
    rows = [f"    [{', '.join(map(_batch, shard))}]," for shard in shards]
    if len(rows) <= 5:
        return rows
    step = math.ceil(len(rows) / 5)
    return [
        "    " + " ".join(row.strip() for row in rows[at : at + step])
        for at in range(0, len(rows), step)
    ]


def _batch(batch: Batch) -> str:
    if batch.kwargs and batch.args:
        return f"Batch({_tuple(batch.args)}, {_literal(dict(batch.kwargs))})"
    return _literal(dict(batch.kwargs)) if batch.kwargs else _tuple(batch.args)


def _tuple(values: Iterable[Any]) -> str:
    items = [_literal(value) for value in values]
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _literal(value: Any) -> str:
    """Write a value as Python reads it."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return _tuple(value)
    return repr(value)


_PLAIN = {
    torch.float32: float,
    torch.int64: int,
    torch.bool: bool,
}  # what torch.tensor makes of Python's numbers


def _tensor(x: Tensor) -> str:
    if x.numel() == 0:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype})"
    numbers = x.detach().cpu().tolist()
    if x.is_floating_point():
        numbers = _short(numbers)
    dtype = "" if x.dtype in _PLAIN else f", dtype={x.dtype}"
    return f"torch.tensor({numbers}{dtype})"


def _short(numbers: Any) -> Any:
    """Write float32 numbers with no more digits than it takes to get them back."""
    if isinstance(numbers, list):
        return [_short(number) for number in numbers]
    shorter = (float(f"{numbers:.{digits}g}") for digits in range(3, 10))
    return next(
        (short for short in shorter if torch.tensor(short) == torch.tensor(numbers)), numbers
    )


def _maker(make: Any) -> tuple[str, list[str]]:
    """Write what makes the metric, and the imports that it needs; what cannot be written is left to
    the reader.
    """
    if isinstance(make, functools.partial):
        inner, imports = _maker(make.func)
        options = [
            *map(_literal, make.args),
            *(f"{key}={_literal(value)}" for key, value in make.keywords.items()),
        ]
        return f"lambda: {inner}({', '.join(options)})", imports
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", "")
    if module and name and "<" not in name:
        place = module if not module.startswith("torchmetrics.") else _public(module, name)
        first = name.partition(".")[0]
        return name, [
            f"from {place} import {first}"
            if place != "__main__"
            else f"# {first}: as in your program"
        ]
    return _lambda(make)


def _public(module: str, name: str) -> str:
    """Return the shortest package that shows the name, as torchmetrics' documentation imports it."""
    import importlib

    parts = module.split(".")
    for length in range(2, len(parts)):
        package = ".".join(parts[:length])
        if hasattr(importlib.import_module(package), name):
            return package
    return module


def _lambda(make: Any) -> tuple[str, list[str]]:
    code = getattr(make, "__code__", None)
    where = (
        f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
        if code
        else type(make).__name__
    )
    unknown = f"...  # as in {where}"
    if code is None or code.co_freevars:
        return unknown, []
    try:
        source = textwrap.dedent(inspect.getsource(make))
        tree = ast.parse(source.strip().rstrip(",)") if source.lstrip().startswith(".") else source)
    except (OSError, SyntaxError):
        return unknown, []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    if len(found) != 1:
        return unknown, []
    names = sorted({node.id for node in ast.walk(found[0]) if isinstance(node, ast.Name)})
    imports = []
    for name in names:
        value = make.__globals__.get(name)
        if inspect.isclass(value) or inspect.isfunction(value):
            imports += _maker(value)[1]
    return ast.unparse(found[0]), imports

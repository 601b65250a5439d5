"""Programs of a few lines that show a violation again, and shards as text."""

import ast
import functools
import inspect
import linecache
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distmetrics.testing.batches import Batch, Shards
from distmetrics.testing.law import Law

_LONG = 400  # characters of a shard in a report
_ROWS = 5  # lines of shards in a program
_PLAIN = (torch.float32, torch.int64, torch.bool)  # what torch.tensor makes of Python's numbers


def shard_texts(shards: Shards) -> tuple[str, ...]:
    """Return each rank's batches as text."""
    texts = [", ".join(map(_batch, shard)) or "no data" for shard in shards]
    return tuple(text if len(text) <= _LONG else f"{text[: _LONG - 1]}…" for text in texts)


def snippet(
    make: Any,
    shards: Shards,
    law: Law,
    sync: str,
    backend: str,
    layouts: Sequence[Mapping[str, int]] = (),
) -> str:
    """Return a program of at most 15 lines that judges one law on these shards again."""
    source, imports = _maker(make)
    ranks = [f"[{', '.join(map(_batch, shard))}]," for shard in shards]
    step = math.ceil(len(ranks) / _ROWS)
    rows = []
    while ranks:
        rows.append(" ".join(ranks[:step]))
        ranks = ranks[step:]
    numbers = " ".join(rows)
    batch = "Batch, " if "Batch(" in numbers else ""
    lines = [f"from distmetrics.testing import {batch}laws, replay", *imports, ""]
    if "torch." in numbers + source:
        lines.insert(0, "import torch")
    if "nan" in numbers or "inf" in numbers:
        lines.insert(0, "from math import inf, nan")
    options = f"law=laws.{law.name.upper().replace('-', '_')}"
    if sync != "distmetrics":
        options += f', sync="{sync}"'
    if backend != "threads":
        options += f', backend="{backend}"'
    if layouts:
        options += f", layouts={[dict(sizes) for sizes in layouts]}"
    lines += [f"make = {source}", "shards = [  # of each rank its updates"]
    lines += [*(f"    {row}" for row in rows), "]", f"print(replay(make, shards, {options}))"]
    return "\n".join(lines)


def _batch(batch: Batch) -> str:
    if not batch.kwargs:
        return _literal(batch.args)
    kwargs = _literal(dict(batch.kwargs))
    return f"Batch({_literal(batch.args)}, {kwargs})" if batch.args else kwargs


def _literal(value: Any) -> str:
    """Return a value as Python reads it."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, dict):
        items = [f"{key!r}: {_literal(each)}" for key, each in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _tensor(x: Tensor) -> str:
    if x.numel() == 0:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype})"
    plain = x.detach().cpu()
    numbers = plain.tolist()
    if x.is_floating_point() and x.dtype != torch.float64:
        # NumPy writes a float32 with no more digits than it takes to get it back.
        numbers = plain.float().numpy().astype(str).astype(float).tolist()
    dtype = "" if x.dtype in _PLAIN else f", dtype={x.dtype}"
    return f"torch.tensor({numbers}{dtype})"


def _maker(make: Any) -> tuple[str, list[str]]:
    """Return what makes the metric as source, and the imports that it needs."""
    if isinstance(make, functools.partial):
        source, imports = _maker(make.func)
        options = [*map(_literal, make.args)]
        options += [f"{name}={_literal(value)}" for name, value in make.keywords.items()]
        return f"lambda: {source}({', '.join(options)})", imports
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", "")
    if not module or not name or "<" in name:
        return _lambda(make)
    first = name.partition(".")[0]
    if module == "__main__":
        return name, [f"# {first}: as in your program"]
    return name, [f"from {module} import {first}"]


def _lambda(make: Any) -> tuple[str, list[str]]:
    """Return the source of a lambda; the reader is told where it is if it cannot be read alone."""
    code = getattr(make, "__code__", None)
    if code is None:
        return f"...  # as in {type(make).__name__}", []
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    lambdas = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
    ]
    if len(lambdas) != 1 or code.co_freevars:
        return f"...  # as in {Path(code.co_filename).name}:{code.co_firstlineno}", []
    imports = []
    for name in sorted(code.co_names):
        value = make.__globals__.get(name)
        if inspect.isclass(value) or inspect.isfunction(value):
            imports += _maker(value)[1]
    return ast.unparse(lambdas[0]), imports

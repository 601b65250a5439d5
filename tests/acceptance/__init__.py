"""What users are promised, tested from outside: public names, commands and files alone.

``README.md`` is the register of promises. ``python -m tests.acceptance.mutants`` shows that these
tests can fail.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distmetrics.errors import DistmetricsError
from distmetrics.testing import Outcome
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
both_backends = pytest.mark.parametrize(
    "backend", ["threads", pytest.param("gloo", marks=pytest.mark.gloo)]
)


def same_error(
    ended: Sequence[Outcome], kind: type[DistmetricsError], *texts: str
) -> DistmetricsError:
    """Assert that every rank raised the same error of ``kind``, which says ``texts``; return it."""
    for outcome in ended:
        assert type(outcome.error) is kind, f"rank {outcome.rank}: {outcome.error!r}"
        assert str(outcome.error) == str(ended[0].error)
    error = ended[0].error
    assert isinstance(error, kind)
    for text in texts:
        assert text in str(error)
    return error


def documented(name: str) -> Any:
    """Return a public name from where ``docs/api.md`` lists it, since its module may move."""
    return getattr(importlib.import_module(home(name)), name)


def home(name: str) -> str:
    """Return the module in which ``docs/api.md`` lists a name."""
    page = (ROOT / "docs" / "api.md").read_text()
    for module, rows in re.findall(
        r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL
    ):
        if f"| `{name}` |" in rows:
            return str(module)
    raise LookupError(f"docs/api.md does not list {name}")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program that imports this tree, with ``variables``.

    Without ``CI`` and ``BUILD_NUMBER``: pytest prints longer summaries where they are set.
    """
    path = [str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")]
    kept = {name: os.environ[name] for name in os.environ.keys() - {"CI", "BUILD_NUMBER"}}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **variables}


def python(
    *arguments: object, cwd: Path, timeout: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments``, a file or ``-m`` and a module, in a fork that has torch."""
    return run_program(arguments, cwd=cwd, env=environment(**variables), timeout=timeout)


def torchrun(
    script: Path, *arguments: object, ranks: int = 2, timeout: float = 90, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script under torchrun, as users do, to its end."""
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        script,
        *arguments,
    ]
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=script.parent,
        env=environment(OMP_NUM_THREADS="1", **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )

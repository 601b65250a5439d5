"""What an import brings along: users pay for it at every start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torchmetrics", "torcheval", "lightning", "hypothesis", "rich", "sklearn", "matplotlib", "deepspeed", "libcst")


def loaded_by(statement: str, *, prelude: str = "") -> set[str]:
    """Run a statement in a fresh interpreter; return the top-level modules loaded afterwards."""
    code = (
        f"{prelude}\n{statement}\nimport sys, json\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("distmetrics, distmetrics.train, distmetrics.launch.spawn", HEAVY),
        ("distlint, distlint.cli", ("torch", "distmetrics", "torchmetrics")),
        ("pytest_distmetrics", ("torch", "distmetrics", "cloudpickle", *HEAVY)),  # every run of pytest loads it
    ],
)
def test_an_import_is_cheap(modules: str, heavy: tuple[str, ...]) -> None:
    """Torch itself may bring some along: what counts is what we add to it."""
    of_torch = loaded_by("import torch, torch.distributed") if "torch" not in heavy else set()
    assert not (loaded_by(f"import {modules}") - of_torch) & set(heavy)


def test_the_import_test_can_fail() -> None:
    assert "rich" in loaded_by("import distmetrics", prelude="import rich")


def test_one_version() -> None:
    import distlint
    import distmetrics

    assert distlint.__version__ == distmetrics.__version__

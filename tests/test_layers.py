"""Data and imports flow one way: each layer imports only what lies below it, and heavy libraries stay in their room."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "distmetrics"

# What a layer may import of distmetrics, besides itself. Everything may import errors and _version.
CORE = {"call_site", "message", "tree", "comm", "guard", "collectives"}
BELOW = {
    "errors": set(),
    "_version": set(),
    "arguments": set(),
    "tree": set(),
    "call_site": set(),
    "message": {"call_site", "tree"},
    "comm": {"call_site", "message"},
    "guard": {"call_site", "message", "comm"},
    # its façade, which shows what lies above it, late
    "guard/__init__": {"message", "comm", "collectives"},
    "collectives": {"call_site", "message", "tree", "comm", "guard"},
    "layouts": CORE,
    "log": CORE | {"arguments"},
    "data": CORE,
    "metrics": CORE | {"data", "layouts"},
    "launch": {"arguments", "call_site", "comm", "guard"},
    "strategies": CORE | {"arguments", "data", "metrics", "launch", "layouts"},
    "run": CORE | {"arguments", "log", "data", "metrics", "launch", "strategies"},
    # façades
    "train": {"data", "log", "strategies", "run"},
    "runner": {"run"},
    "integrations": CORE | {"arguments", "layouts", "log", "data", "metrics"},
    "testing": CORE | {"layouts", "metrics", "launch"},
    # the one part of the kit that knows the trainer
    "testing/equivalence": CORE | {"data", "launch", "strategies", "run", "train"},
    "cli": CORE | {"", "metrics", "launch", "strategies", "run", "train", "testing"},
    "__main__": {"cli"},
    # the façade; the last one late
    "": CORE | {"layouts", "log", "data", "launch", "metrics", "runner"},
}
# Modules that may import a third party at their top, since they are themselves imported only when it is in use.
ROOMS = {
    "metrics/adapters/torchmetrics.py": {"torchmetrics"},
    "metrics/adapters/torcheval.py": {"torcheval"},
    "testing/inputs.py": {"hypothesis"},
    "integrations/accelerate.py": {"accelerate"},
    "integrations/fabric.py": {"lightning", "lightning_fabric"},
    "integrations/lightning.py": {"lightning", "pytorch_lightning", "torchmetrics"},
    "integrations/transformers.py": {"transformers"},
    "testing/plugin.py": {"pytest", "_pytest"},
    "cli/demo.py": {"torchmetrics"},
    "cli/data/bad_training.py": {"lightning", "sklearn"},
}


def layer_of(file: str) -> str:
    if file.removesuffix(".py") in BELOW:
        return file.removesuffix(".py")
    head = file.split("/")[0].removesuffix(".py")
    return "" if head == "__init__" else head


def imports(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, module and whether it is imported when the file is."""
    tree = ast.parse(source)
    late = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(function, ast.If) and "TYPE_CHECKING" in ast.dump(function.test))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, node not in late
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            yield node.lineno, node.module or "", node not in late


def violations(file: str, source: str) -> list[str]:
    """Return what a file at ``distmetrics/<file>`` imports and must not."""
    layer = layer_of(file)
    found = []
    for line, module, early in imports(source):
        top, _, rest = module.partition(".")
        if top == "distmetrics":
            target = rest.split(".")[0]
            own = layer.split("/")[0]
            names = {target, layer_of(rest.replace(".", "/"))}
            if target != own and not names & (BELOW[layer] | {"errors", "_version"}):
                found.append(f"{file}:{line} imports {module}, which is not below {layer or 'the façade'}")
        elif early and top not in sys.stdlib_module_names | {"torch", "msgspec"} | ROOMS.get(file, set()):
            found.append(f"{file}:{line} imports {module} at the top; import it where it is needed, or see ROOMS")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_layers(path: Path) -> None:
    assert violations(path.relative_to(PACKAGE).as_posix(), path.read_text()) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("comm/x.py", "from distmetrics.collectives.ops import all_gather"),
        ("comm/x.py", "from distmetrics.guard.watchdog import Watchdog"),
        ("collectives/x.py", "def f():\n    import distmetrics.metrics"),
        ("metrics/x.py", "import torchmetrics"),
        ("testing/x.py", "from distmetrics.train import Trainer"),
        ("launch/x.py", "from distmetrics.collectives import ops"),
        ("train/x.py", "from rich.progress import Progress"),
        ("comm/x.py", "import distmetrics"),
    ],
)
def test_the_layer_test_can_fail(file: str, source: str) -> None:
    assert len(violations(file, source)) == 1


def test_late_and_typing_imports_of_third_parties_are_fine() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich\ndef f():\n    import lightning\n"
    assert violations("train/x.py", source) == []


def test_every_layer_has_a_rule() -> None:
    layers = {layer_of(path.relative_to(PACKAGE).as_posix()) for path in PACKAGE.rglob("*.py")}
    assert layers <= BELOW.keys()

"""An optional package that is missing is an error that names it and says what to install, wherever it is needed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from distmetrics.cli.demo import demo
from distmetrics.errors import ConfigurationError, MissingDependencyError, optional


def importing(name: str) -> Callable[..., Any]:
    return lambda: importlib.import_module(f"distmetrics.{name}")


def drawing() -> Any:
    from distmetrics.testing.shards import partitions

    return partitions([(torch.ones(1),)])


def training(strategy: str) -> Callable[..., Any]:
    from distmetrics.train import Trainer

    return lambda: Trainer(strategy=strategy, accelerator="cpu").fit(None)


def of_train(name: str, *args: Any) -> Callable[..., Any]:
    import distmetrics.train

    return lambda: getattr(distmetrics.train, name)(*args)


def meeting_by_mpi() -> Any:
    from distmetrics.launch.environment import detect, reachable

    variables = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    return reachable(detect(variables))


# What is missing, who needs it, and what the text says to install.
NEEDED = [
    ("accelerate", importing("integrations.accelerate"), "accelerate"),
    ("lightning", importing("integrations.fabric"), "lightning"),
    ("lightning", importing("integrations.lightning"), "lightning"),
    ("torchmetrics", importing("integrations.lightning"), "torchmetrics"),
    ("transformers", importing("integrations.transformers"), "transformers"),
    ("torchmetrics", importing("cli.demo"), "torchmetrics"),
    ("sklearn", lambda: demo(as_json=True), "scikit-learn"),
    ("rich", lambda: demo(as_json=True), "rich"),
    ("distlint", lambda: demo(as_json=True), "./lint"),
    ("hypothesis", importing("testing.inputs"), "hypothesis"),
    ("hypothesis", drawing, "hypothesis"),
    ("deepspeed", training("deepspeed"), "deepspeed"),
    ("torch_xla", training("xla"), "torch_xla"),
    ("rich", of_train("ProgressBar"), "rich"),
    ("rich", of_train("ModelSummary"), "rich"),
    ("tensorboard", of_train("TensorBoardLogger", "there"), "tensorboard"),
    ("mpi4py", meeting_by_mpi, "mpi4py"),
]


@pytest.mark.parametrize(("package", "needs", "installed"), NEEDED)
def test_a_missing_package_is_named_with_what_to_install(
    package: str, needs: Callable[..., Any], installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("distmetrics.integrations.", "distmetrics.cli.demo", "distmetrics.testing.inputs")
    for name in [*sys.modules]:
        if name.startswith(f"{package}."):
            monkeypatch.setitem(sys.modules, name, None)
        elif name.startswith(ours):
            monkeypatch.delitem(sys.modules, name)
    for name in (package, f"pytorch_{package}", f"{package}_fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=f"needs {package}|needs {installed}") as caught:
        needs()
    assert f"pip install {installed}" in str(caught.value)


def test_another_import_that_fails_stays_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, optional("accelerate", "a test"):
        importlib.import_module("no_such_module")
    assert not isinstance(caught.value, MissingDependencyError)
    with pytest.raises(ConfigurationError), optional("accelerate", "a test"):
        raise ConfigurationError("of the user's")

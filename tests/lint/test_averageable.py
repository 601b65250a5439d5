"""The table of averageable and other metrics."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from distlint.analysis.project import Project, Settings
from distlint.averageable import LIBRARIES, NAMED, find, named, reason_against, stem
from distlint.engine import check_source
from distlint.rules import RULES
from distlint.which_tool import page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f1_score", "f1"),
        ("BinaryF1Score", "f1"),
        ("multiclass_f1_score", "f1"),
        ("MultilabelAUROC", "auroc"),
        ("WindowedBinaryAUROC", "auroc"),
        ("r2_score", "r2"),
        ("zero_one_loss", "zeroone"),
        ("RetrievalPrecision", "retrievalprecision"),
    ],
)
def test_stem(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_every_stem_says_one_thing_with_a_reason() -> None:
    kinds: dict[str, set[str]] = {}
    for name, entry in NAMED.items():
        kinds.setdefault(stem(name), set()).add(entry.kind)
        assert len(entry.reason) > 10
    assert all(len(each) == 1 for each in kinds.values())


@pytest.mark.parametrize(
    "name",
    [
        "sklearn.metrics.f1_score",
        "torchmetrics.functional.auroc",
        "torchmetrics.F1Score",
        "torcheval.metrics.functional.binary_auroc",
        "torcheval.metrics.WindowedBinaryAUROC",
        "pytorch_lightning.metrics.F1",
    ],
)
def test_known(name: str) -> None:
    assert reason_against(name)


@pytest.mark.parametrize(
    "name",
    [
        "sklearn.metrics.accuracy_score",
        "sklearn.metrics.unheard_of",
        "mine.f1_score",
        "f1_score",
        "torchmetrics.RetrievalMAP",
        "torchmetrics.retrieval.RetrievalPrecision",
        "torch.nn.functional.cross_entropy",
        "torch.nn.functional.softmax",
    ],
)
def test_averageable_or_unknown(name: str) -> None:
    assert reason_against(name) is None


def test_losses_of_torch_are_averageable() -> None:
    for name in ("torch.nn.functional.cross_entropy", "torch.nn.MSELoss"):
        entry = find(name)
        assert entry is not None
        assert entry.kind == "averageable"


def _public(module: str) -> set[str]:
    """The public functions and classes of a module."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [name for name in dir(loaded) if not name.startswith("_")]
    values = {name: getattr(loaded, name, None) for name in names}
    root = module.partition(".")[0]
    return {
        f"{module}.{name}"
        for name, value in values.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(root)
    }


def _domains(package: str) -> list[str]:
    """The packages below one that hold its metrics by domain."""
    loaded = importlib.import_module(package)
    below = [each.name for each in pkgutil.iter_modules(loaded.__path__) if each.ispkg]
    return [package, *(f"{package}.{name}" for name in below if name not in ("utilities", "functional"))]


def _unknown(names: set[str]) -> list[str]:
    return sorted(name for name in names if find(name) is None)


def test_torchmetrics_is_complete() -> None:
    pytest.importorskip("torchmetrics")
    found: set[str] = set()
    for module in (*_domains("torchmetrics"), *_domains("torchmetrics.functional")):
        found |= _public(module)
    assert len(found) > 300
    assert _unknown(found) == []


def test_torcheval_is_complete() -> None:
    pytest.importorskip("torcheval")
    found = _public("torcheval.metrics") | _public("torcheval.metrics.functional")
    assert len(found) > 80
    assert _unknown(found) == []


def test_scikit_learn_is_complete() -> None:
    pytest.importorskip("sklearn")
    assert _unknown(_public("sklearn.metrics")) == []


def test_losses_of_torch_are_complete() -> None:
    torch = pytest.importorskip("torch")
    losses = {f"torch.nn.{name}" for name in dir(torch.nn) if name.endswith("Loss")}
    functions = {name for name in dir(torch.nn.functional) if name.endswith(("_loss", "cross_entropy"))}
    assert len(losses) > 20
    assert _unknown(losses | {f"torch.nn.functional.{name}" for name in functions if not name.startswith("_")}) == []


def test_every_metric_object_that_is_recommended_exists() -> None:
    pytest.importorskip("torchmetrics")
    known = {name.rpartition(".")[2] for module in _domains("torchmetrics") for name in _public(module)}
    # Only imported where their own dependencies are installed.
    known |= {f"{kind}IntersectionOverUnion" for kind in ("", "Complete", "Distance", "Generalized")}
    known |= {"MeanAveragePrecision", "PanopticQuality", "ModifiedPanopticQuality", "PerceptualPathLength"}
    known |= {"KernelInceptionDistance", "InceptionScore", "FrechetInceptionDistance"}
    assert {entry.metric for entry in NAMED.values() if entry.metric} <= known


def test_names_of_a_dict_of_metrics() -> None:
    entry = named("f1-score")
    assert entry is not None
    assert (entry.kind, entry.metric) == ("not averageable", "F1Score")
    assert named("support") is None


SOURCE = b"""\
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score
from .scores import gini

def spread(x):
    return x.max() - x.min()

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("f1", f1_score(batch.y, self(batch)), sync_dist=True)
        self.log("gini", gini(batch.y), sync_dist=True)
        self.log("spread", spread(batch.y), sync_dist=True)
"""


def _lines(settings: Settings) -> list[int]:
    project = Project(settings=settings)
    return [found.line for found in check_source(SOURCE, "package/model.py", [RULES["DL201"]], project=project)]


def test_what_the_user_declares_goes_before_the_table() -> None:
    assert _lines(Settings()) == [10]
    assert _lines(Settings(averageable=frozenset({"sklearn.metrics.f1_score"}))) == []
    declared = {"package.scores.gini": "it ranks all examples", "package.model.spread": ""}
    assert _lines(Settings(non_averageable=declared)) == [10, 11, 12]


def test_the_reason_that_the_user_gave_is_shown() -> None:
    project = Project(settings=Settings(non_averageable={"package.scores.gini": "it ranks all examples"}))
    found = check_source(SOURCE, "package/model.py", [RULES["DL201"]], project=project)
    assert "it ranks all examples" in found[1].message


def test_the_page_is_made_from_the_table() -> None:
    text = (DOCS / "which-tool.md").read_text()
    assert text == page(), "python -m distlint.which_tool > docs/which-tool.md"


def test_the_libraries_are_known() -> None:
    assert {"torchmetrics", "torcheval.metrics", "sklearn.metrics"} <= set(LIBRARIES)

"""The table of averageable and other metrics: complete, and each entry with its reason."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

from distlint.averageable import ENTRIES, NAMED, find, reason_against, stem

# The stem of a name, with "-" where it is no mean over examples.
KNOWN = {
    "sklearn.metrics.f1_score": "f1-",
    "torchmetrics.F1Score": "f1-",
    "torcheval.metrics.functional.multiclass_f1_score": "f1-",
    "torcheval.metrics.WindowedBinaryAUROC": "auroc-",
    "sklearn.metrics.r2_score": "r2-",
    "sklearn.metrics.zero_one_loss": "zeroone",
    "sklearn.metrics.unheard_of": "unheardof",
    "mine.f1_score": "f1",
    "f1_score": "f1",
    "torchmetrics.RetrievalMAP": "retrievalmap",
    "torch.nn.functional.softmax": "softmax",
}


def test_every_stem_says_one_thing_with_a_reason():
    kinds = {}
    for name, entry in NAMED.items():
        kinds.setdefault(stem(name), set()).add(entry.kind)
        assert len(entry.reason) > 10
    assert all(len(each) == 1 for each in kinds.values())
    assert {name: stem(name.rpartition(".")[2]) + "-" * bool(reason_against(name)) for name in KNOWN} == KNOWN
    for name in ("torch.nn.functional.cross_entropy", "torch.nn.MSELoss"):
        assert find(name).kind == "averageable"


def public(module):
    """Return the public functions and classes of a module."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [each for each in dir(loaded) if each[0] != "_"]
    values = {name: getattr(loaded, name, None) for name in names}
    own = module.partition(".")[0]
    kinds = (value for value in values.items() if inspect.isclass(value[1]) or inspect.isfunction(value[1]))
    return {f"{module}.{name}" for name, value in kinds if value.__module__.startswith(own)}


def names_of(library):
    """Return the public metrics of a library, with its packages by domain; of torch, the losses."""
    loaded = importlib.import_module(library)
    if library == "torch.nn":
        losses = {f"torch.nn.{name}" for name in dir(loaded) if name.endswith("Loss")}
        functional = (name for name in dir(loaded.functional) if re.search("^[^_].*(_loss|cross_entropy)$", name))
        return losses | {f"torch.nn.functional.{name}" for name in functional}
    packages = [library]
    if library != "sklearn.metrics":
        packages.append(f"{library}.functional")
    if library == "torchmetrics":
        for each in list(packages):
            below = pkgutil.iter_modules(importlib.import_module(each).__path__)
            packages += [f"{each}.{one.name}" for one in below if one.ispkg and one.name != "utilities"]
    return set().union(*map(public, packages))


@pytest.mark.parametrize("library", ["torchmetrics", "torcheval.metrics", "sklearn.metrics", "torch.nn"])
def test_a_library_is_complete(library):
    pytest.importorskip(library)
    names = names_of(library)
    assert len(names) > 20
    assert sorted(name for name in names if find(name) is None) == []


def test_the_page_says_what_the_table_says():
    page = (Path(__file__).parents[2] / "docs/which-tool.md").read_text("utf-8")
    first, second = page.partition("## Means over samples")[2].partition("\n## Options")[0].split("## Everything else")
    for part, kind in (first, "averageable"), (second, "not averageable"):
        named = metrics_of(part)
        assert len(named) > 100
        other = [name for name, _ in named if ENTRIES[stem(name)].kind != kind]
        assert all(name.startswith("peak_signal_noise_ratio") for name in other)
        if kind == "not averageable":
            told = {name: why for why, cell in rows_of(part) for name, _ in names_in(cell) if name not in other}
            assert told == {name: ENTRIES[stem(name)].reason for name in told}
    folder = Path(importlib.import_module("torchmetrics").__file__).parent
    text = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    classes = re.findall(r"^class (\w+)\(", text, re.MULTILINE)
    classes += [stem(each) for each in classes]
    assert [name for name, use in named if use != "*gather*" and (use or stem(name)) not in classes] == []


def metrics_of(part):
    """Return the metrics of a table, and the tool that stands in parentheses after each."""
    return [named for _, cell in rows_of(part) for named in names_in(cell)]


def rows_of(part):
    """Return the reason and the cell of metrics of each row."""
    return re.findall(r"^\| ([^|]+) \| ([a-z].*) \|$", part, re.MULTILINE)[1:]


def names_in(cell):
    return re.findall(r"(\w+)(?: \(([\w*]+)[^)]*\))?(?:, |$)", cell)

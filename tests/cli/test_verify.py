"""``python -m distmetrics verify TARGET``: what it names, what it judges, what it prints, and its exit codes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

from distmetrics.cli import main
from distmetrics.cli.guess import Guess
from distmetrics.cli.verify import chosen
from distmetrics.cli.verify_targets import arguments, batches_of, load, targets
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.testing import laws

MODULE = '''
import torch
from torchmetrics import Metric, SumMetric

class BinaryShare(Metric):
    """The share of ones, and the mean of the ranks' shares: not the single process's."""

    def __init__(self):
        super().__init__()
        self.add_state("share", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, preds, target):
        total = self.share * self.count + target.sum()
        self.count += target.numel()
        self.share = total / self.count.clamp(min=1)

    def compute(self):
        return self.share

class Fine(SumMetric):
    pass

class _Hidden(SumMetric):
    pass

def fine():
    return SumMetric()

def opaque():
    return type("Opaque", (), {"update": lambda self, x, y, z: None, "compute": lambda self: 0})()

class Factory:
    def make(self):
        return SumMetric()

factory = Factory()
metric = SumMetric()
three = [(torch.tensor([1.0]),), (torch.tensor([2.0, 5.0]),), (torch.tensor([3.0]),)]

def batches():
    return three

def strings():
    return [("no tensor",)]
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder with a user's module, which only the working directory leads to."""
    (tmp_path / "my_metrics.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_metrics", raising=False)
    return tmp_path


QUICK = ("--max-examples", "5", "--world-sizes", "2")


def test_a_wrong_metric_is_caught_with_exit_code_1(folder, capsys):
    assert main(["verify", "my_metrics:BinaryShare", "--laws", "single-is-sharded,ranks-agree", *QUICK]) == 1
    said = capsys.readouterr().out
    assert "breaks the law single-is-sharded (1)" in said
    assert "from my_metrics import BinaryShare" in said
    assert "1 metric judged, 1 of them break a law." in said


def test_a_right_metric_has_exit_code_0(folder, capsys):
    assert main(["verify", "my_metrics:Fine", "--laws", "1,2,15", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "✓" in line and "holds" not in line] == [
        ["1", "single-is-sharded", "✓"],
        ["2", "ranks-agree", "✓"],
        ["15", "no-hang", "✓"],
    ]


@pytest.mark.parametrize("target", ["my_metrics:fine", "my_metrics:factory"])
@pytest.mark.parametrize("fed", [[], ["--inputs", "my_metrics:batches"], ["--inputs", "my_metrics:three"]])
def test_functions_and_objects_make_metrics_too(folder, target, fed):
    assert main(["verify", target, *fed, "--laws", "1", *QUICK]) == 0


def test_a_module_is_judged_metric_by_metric(folder, capsys):
    assert main(["verify", "my_metrics", "--laws", "1", "--json", *QUICK]) == 1
    found = {row["metric"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(found) == {"my_metrics:BinaryShare", "my_metrics:Fine"}
    assert [v["law"] for v in found["my_metrics:BinaryShare"]["violations"]] == ["single-is-sharded"]
    assert found["my_metrics:Fine"]["ok"]


def test_the_page_has_every_metric(folder):
    main(["verify", "my_metrics", "--laws", "1", "--html", "page.html", *QUICK])
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "my_metrics:BinaryShare" in page
    assert "my_metrics:Fine" in page


def test_own_sync_is_judged_where_it_is_asked_for(folder, capsys):
    assert main(["verify", "my_metrics:Fine", "--sync", "own", "--laws", "state-restored", *QUICK]) == 1
    assert 'law=laws.STATE_RESTORED, sync="own"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["my_metrics:opaque"], "pass --inputs NAME"),
        (["my_metrics:Fine", "--inputs", "my_metrics:strings"], "no law could be judged"),
        (["torchmetrics.wrappers:MinMaxMetric"], "its constructor needs base_metric: pass --arg base_metric=…"),
    ],
)
def test_what_cannot_be_judged_says_what_to_pass(folder, capsys, words, said):
    assert main(["verify", *words, "--laws", "1", *QUICK]) == 2
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_module"], "there is no module no_such_module"),
        (["my_metrics.Fine"], "write my_metrics:Fine"),
        (["my_metrics:fin"], "my_metrics has no fin; it has Fine, fine"),
        (["my_metrics:metric"], "is a SumMetric, which makes no metrics"),
        (["json"], "there is no metric in json"),
        (["my_metrics:Fine", "--laws", "no-such-law"], "there is no law 'no-such-law'"),
        (["my_metrics:Fine", "--inputs", "nonsense"], "there are no ready inputs 'nonsense'; there are aggregation"),
        (["my_metrics:Fine", "--inputs", "binary(1)"], "--inputs takes NAME, NAME(option=value)"),
        (["my_metrics:Fine", "--inputs", "binary("], "--inputs cannot be read"),
        (["my_metrics:Fine", "--arg", "nonsense"], "--arg takes NAME=VALUE"),
    ],
)
def test_wrong_words_are_told_with_exit_code_2(folder, capsys, words, said):
    assert main(["verify", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_rich_there_is_json(folder, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "rich" else found(name, *more))
    assert main(["verify", "my_metrics:Fine", "--laws", "1"]) == 2
    assert "pip install rich" in capsys.readouterr().err
    assert main(["verify", "my_metrics:Fine", "--laws", "1", "--json", *QUICK]) == 0


def test_arguments_and_inputs_are_read():
    assert arguments(["a=5", "b=[1, 2]", "c=macro"]) == {"a": 5, "b": [1, 2], "c": "macro"}
    (target,) = targets("torchmetrics.classification:MulticlassAccuracy", {"num_classes": 7, "average": "micro"})
    made = target.make()
    assert isinstance(made, MulticlassAccuracy)
    assert (made.num_classes, made.average) == (7, "micro")
    assert load("torchmetrics:SumMetric") is SumMetric


@pytest.mark.parametrize("text", ["multiclass(num_classes=2)", "multiclass"])
def test_options_of_inputs_win_over_what_was_guessed(text):
    from hypothesis import find

    drawn = find(batches_of(text, Guess({}, "multiclass", {"num_classes": 6})), lambda batches: True)
    assert drawn[0][0].shape[1] == (2 if "=" in text else 6)


def test_laws_are_chosen_by_name_number_and_set():
    assert chosen("all") == laws.ALL
    assert list(chosen("1, no_hang")) == [laws.SINGLE_IS_SHARDED, laws.NO_HANG]
    less = chosen("-rank-order")
    assert laws.RANK_ORDER not in less
    assert len(less) == len(laws.DEFAULT) - 1
    assert less.off_because == {laws.RANK_ORDER: "switched off on the command line"}
    assert len(chosen("default,exact")) == len(laws.DEFAULT) + 1
    with pytest.raises(InputError):
        chosen("99")
    with pytest.raises(ConfigurationError):
        chosen(" , ")

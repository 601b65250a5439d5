"""Whatever is given to the linter: the prefilter changes nothing, and nothing ends the run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distlint.cli import main
from distlint.engine import check_source
from distlint.model import Finding
from distlint.project.scan import scan_source
from distlint.rules import RULES
from distlint.run import check_files

ALL = list(RULES.values())
RELAXED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

# Modules as people write them for trainers: what rules look for, in every mixture, with and without the names that
# the prefilter goes by.
IMPORTS = (
    "import torch",
    "import torch.distributed as dist",
    "from torch.distributed import all_gather as ag, barrier",
    "from torch import nn",
    "import pytorch_lightning as pl",
    "import lightning as L",
    "from lightning.pytorch import LightningModule, LightningDataModule, Callback, Trainer",
    "from lightning.pytorch.utilities import rank_zero_only",
    "from accelerate import Accelerator",
    "from sklearn.metrics import f1_score",
    "import torchmetrics",
    "from torchmetrics import Accuracy, F1Score as F1",
    "from torch.utils.data import DataLoader, Dataset, DistributedSampler",
    "from .base import Base, helper",
)
VALUES = (
    "x",
    "self(x)",
    "loss",
    "torch.ones(3)",
    "torch.zeros(2, device='cuda')",
    "f1_score(y, x)",
    "F1(task='binary')",
    "self.f1(x, y)",
    "self.f1.compute()",
    "self.all_gather(x)",
    "dist.all_reduce(x)",
    "ag(x, y)",
    "accelerator.gather(x)",
    "helper(x)",
    "lambda a: a",
    "[]",
    "{}",
    "{'f1': x, 'loss': loss}",
    "DataLoader(x, sampler=DistributedSampler(x), num_workers=2)",
    "torch.exp(loss)",
    "x.cuda()",
    "x.to(self.device)",
    "dist.get_rank()",
    "[a.item() for a in outputs]",
)
TESTS = (
    "rank == 0",
    "self.trainer.is_global_zero",
    "not accelerator.is_main_process",
    "dist.get_rank() != 0",
    "x.sum() > 0",
    "len(x)",
    "batch_idx % 10 == 0",
    "os.environ['LOCAL_RANK'] == '0'",
)
CALLS = (
    "self.log('f1', {value}, sync_dist=True)",
    "self.log('val_loss', {value})",
    "self.log_dict({value}, rank_zero_only=True)",
    "dist.barrier()",
    "barrier()",
    "self.trainer.save_checkpoint('a.ckpt')",
    "accelerator.save_state()",
    "self.outputs.append({value})",
    "self.outputs.clear()",
    "self.register_buffer('b', {value})",
    "helper({value})",
    "self.own({value})",
    "return {value}",
    "x = {value}",
    "self.f1 = {value}",
    "self.f1.update(x, {value})",
    "x += {value}",
    "pass",
    "continue",
    "raise ValueError({value})",
)
NAMES = (
    "__init__",
    "forward",
    "training_step",
    "validation_step",
    "on_validation_epoch_end",
    "train_dataloader",
    "own",
)
BASES = ("LightningModule", "pl.LightningModule", "nn.Module", "LightningDataModule", "Dataset", "Base", "object")


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


SIMPLE = st.builds(lambda call, value: [call.format(value=value)], st.sampled_from(CALLS), st.sampled_from(VALUES))


def compound(blocks: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    def branch(test: str, then: list[str], orelse: list[str]) -> list[str]:
        return [f"if {test}:", *indented(then), *(["else:", *indented(orelse)] if orelse else [])]

    def loop(over: str, body: list[str]) -> list[str]:
        return [f"for item in {over}:", *indented(body)]

    def attempt(body: list[str], handler: list[str], last: list[str]) -> list[str]:
        return ["try:", *indented(body), "except OSError as error:", *indented(handler), "finally:", *indented(last)]

    def context(body: list[str]) -> list[str]:
        return ["with torch.no_grad() as guard:", *indented(body)]

    def function(decorated: bool, body: list[str]) -> list[str]:
        return [*(["@rank_zero_only"] if decorated else []), "def local(x, y=1, *rest):", *indented(body)]

    return st.one_of(
        st.builds(branch, st.sampled_from(TESTS), blocks, st.one_of(st.just([]), blocks)),
        st.builds(loop, st.sampled_from(("x", "{1, 2}", "self.outputs", "range(3)")), blocks),
        st.builds(attempt, blocks, blocks, blocks),
        st.builds(context, blocks),
        st.builds(function, st.booleans(), blocks),
    )


def joined(parts: list[list[str]]) -> list[str]:
    return [line for part in parts for line in part]


BLOCK = st.recursive(
    st.lists(SIMPLE, min_size=1, max_size=3).map(joined),
    lambda inner: st.lists(st.one_of(SIMPLE, compound(inner)), min_size=1, max_size=3).map(joined),
    max_leaves=8,
)
METHOD = st.builds(
    lambda name, only, body: [
        *(["@rank_zero_only"] if only else []),
        f"def {name}(self, x, y, batch_idx):",
        *indented(body),
    ],
    st.sampled_from(NAMES),
    st.booleans(),
    BLOCK,
)
CLASS = st.builds(
    lambda base, methods: [f"class Model({base}):", *indented(joined(methods))],
    st.sampled_from(BASES),
    st.lists(METHOD, min_size=1, max_size=4),
)
FUNCTION = st.builds(lambda body: ["def helper(x, rank):", *indented(body)], BLOCK)
MODULE = st.builds(
    lambda imports, parts: "\n".join([*imports, *joined(parts), ""]),
    st.lists(st.sampled_from(IMPORTS), max_size=8, unique=True),
    st.lists(st.one_of(CLASS, FUNCTION, SIMPLE), min_size=1, max_size=3),
)


@RELAXED
@given(MODULE)
def test_the_prefilter_changes_nothing(source: str) -> None:
    with_it = check_source(source.encode(), "x.py", ALL)
    assert with_it == check_source(source.encode(), "x.py", ALL, prefilter=False)
    assert all(1 <= found.line <= source.count("\n") + 1 for found in with_it)


def test_the_modules_are_worth_it() -> None:
    """The grammar makes modules that parse and in which something is found."""
    codes: set[str] = set()

    @settings(RELAXED, derandomize=True, database=None, max_examples=150)
    @given(MODULE)
    def collect(source: str) -> None:
        codes.update(found.code for found in check_source(source.encode(), "x.py", ALL))

    collect()
    assert len(codes - {"DL000"}) >= 6, codes


@RELAXED
@given(MODULE, st.data())
def test_what_is_cut_or_damaged_is_at_most_a_finding(source: str, data: st.DataObject) -> None:
    whole = source.encode()
    cut = data.draw(st.integers(0, len(whole)))
    noise = data.draw(st.binary(max_size=8))
    for damaged in (whole[:cut], whole[cut:], whole[:cut] + noise + whole[cut:]):
        for found in check_source(damaged, "x.py", ALL, prefilter=False):
            assert found.line >= 1


@RELAXED
@given(MODULE, st.sampled_from(("\r\n", "\r", "\n\x0c\n")), st.sampled_from(("", "\ufeff")))
def test_line_ends_and_marks_change_no_finding(source: str, end: str, mark: str) -> None:
    plain = check_source(source.encode(), "x.py", ALL)
    other = check_source((mark + source.replace("\n", end)).encode(), "x.py", ALL)
    assert _without_lines(other) == _without_lines(plain)


def _without_lines(findings: list[Finding]) -> list[tuple[str, str]]:
    """A form feed on a line of its own moves all below, and messages name lines."""
    return [(each.code, re.sub(r"\bline \d+", "line", each.message)) for each in findings]


@RELAXED
@given(st.binary(max_size=200))
def test_any_bytes(source: bytes) -> None:
    for found in check_source(source, "x.py", ALL, prefilter=False):
        assert found.code == "DL000" or found.line >= 1
    scan_source(source, "x.py")


def is_too_deep(found: list[Finding]) -> bool:
    return [each.code for each in found] == ["DL000"] and "too " in found[0].message


@pytest.mark.parametrize(
    ("source", "deep"),
    [
        ("x = " + "(" * 90 + "1" + ")" * 90, False),
        ("x = " + "(" * 30_000 + "1" + ")" * 30_000, True),
        ("x = " + "[" * 5_000 + "]" * 5_000, True),
        ("x = " + "f(" * 3_000 + ")" * 3_000, True),
        ("x = a" + ".b" * 20_000, True),
        ("x = " + "1 + " * 20_000 + "1", True),
        ("x = " + "-" * 20_000 + "1", True),
        ("x = " + "lambda: " * 20_000 + "1", True),
        ("".join(" " * depth + "if x:\n" for depth in range(200)) + " " * 200 + "pass", True),
    ],
    ids=["fine", "parentheses", "lists", "calls", "attributes", "sums", "signs", "lambdas", "blocks"],
)
def test_deep_nesting_is_a_finding_at_most(source: str, deep: bool) -> None:
    found = check_source(f"import torch.distributed as dist\n{source}\n".encode(), "x.py", ALL, prefilter=False)
    assert is_too_deep(found) is deep
    scan_source(source.encode(), "x.py")


def test_a_rule_that_cannot_follow_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(type(RULES["DL101"]), "query", follow)
    assert is_too_deep(check_source(RULES["DL101"].bad[0].source.encode(), "x.py", ALL))


@pytest.mark.long
def test_a_very_long_file() -> None:
    line = "def f{}(rank):\n    if rank == 0:\n        pass\n"
    source = "import torch.distributed as dist\n" + "".join(line.format(number) for number in range(16_700))
    source += "def g(rank):\n    if rank == 0:\n        dist.barrier()\n"
    assert source.count("\n") > 50_000
    found = check_source(source.encode(), "x.py", [RULES["DL101"]])
    assert [(each.code, each.line) for each in found] == [("DL101", 50_104)], found[0].message


def test_odd_files_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "utf16.py").write_bytes("x = 1\n".encode("utf-16"))
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "missing.py")
    (tmp_path / "itself.py").symlink_to(tmp_path / "itself.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folder.py" / "inside.py").write_text(RULES["DL101"].bad[0].source)
    os.mkfifo(tmp_path / "pipe.py")
    assert main(["check", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    places = [line.split(" DL") for line in out.splitlines() if " DL" in line]
    shown = sorted(f"DL{rest[:3]} {Path(place.split(':')[0]).name}" for place, rest in places)
    assert shown == [
        "DL000 null.py",
        "DL000 utf16.py",
        "DL101 inside.py",
    ]
    assert "3 findings in 4 files" in err


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.py"
    path.write_text("x = 1\n")
    read = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.name == "secret.py":
            raise PermissionError(13, "Permission denied", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (found,) = check_files([path], ALL).findings
    assert (found.code, found.line) == ("DL000", 1)
    assert "Permission denied" in found.message

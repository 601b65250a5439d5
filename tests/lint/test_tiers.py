"""What is sure and what is for review: by option, by configuration, and in all that goes with a finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distlint.cli import main

Capture = pytest.CaptureFixture[str]
SOURCE = """\
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)

def wait(rank):
    if rank == 0:
        dist.barrier()
"""
SURE, REVIEW = ("DL101", 11, "sure"), ("DL202", 7, "review")
CONDITION = ", if it runs on several devices"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return path


def configure(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.distlint]\n{text}\n")


def shown(capsys: Capture, *options: str) -> list[tuple[str, int, str]]:
    capsys.readouterr()
    main(["check", "model.py", "--output-format", "json", *options])
    return sorted((each["code"], each["line"], each["confidence"]) for each in json.loads(capsys.readouterr().out))


def test_review_has_to_be_asked_for(file: Path, capsys: Capture) -> None:
    assert shown(capsys) == [SURE]
    assert shown(capsys, "--review") == [SURE, REVIEW]
    configure("review = true")
    assert shown(capsys) == [SURE, REVIEW]


def test_what_is_hidden_is_counted(file: Path, capsys: Capture) -> None:
    assert main(["check", "model.py", "--select", "DL202"]) == 0
    assert capsys.readouterr().err == "0 findings in 1 file; 1 more with --review\n"
    assert main(["check", "model.py", "--select", "DL202", "--review"]) == 1
    assert capsys.readouterr().err.startswith("1 finding in 1 file (")


def test_the_message_ends_with_the_condition(file: Path, capsys: Capture) -> None:
    main(["check", "model.py", "--select", "DL202", "--review"])
    first = capsys.readouterr().out.splitlines()[0]
    assert "DL202 [eval-log-not-synced, review] " in first
    assert first.endswith(CONDITION)


def test_devices_settle_what_lacks_nothing_else(file: Path, capsys: Capture) -> None:
    """The cache knows the two apart: each is asked twice."""
    for _ in range(2):
        configure('devices = "many"')
        assert shown(capsys) == [SURE, (*REVIEW[:2], "sure")]
        configure('devices = "one"')
        assert shown(capsys, "--review") == [SURE]
    configure('devices = "many"')
    main(["check", "model.py", "--select", "DL202"])
    assert CONDITION not in capsys.readouterr().out


def test_fixes_are_those_of_what_is_shown(file: Path) -> None:
    main(["check", "model.py", "--fix", "--select", "DL202"])
    assert file.read_text() == SOURCE
    main(["check", "model.py", "--fix", "--select", "DL202", "--review"])
    assert file.read_text() == SOURCE.replace('"loss", loss)', '"loss", loss, sync_dist=True)')


def test_comments_are_used_whatever_is_shown(file: Path, capsys: Capture) -> None:
    ignored = SOURCE.replace('"loss", loss)', '"loss", loss)  # distlint: ignore[DL202] one node')
    file.write_text(ignored)
    assert shown(capsys) == shown(capsys, "--review") == [SURE]
    configure('devices = "one"')
    assert shown(capsys) == [SURE]
    file.write_text(ignored.replace("[DL202]", ""))
    assert shown(capsys) == [SURE]


def test_comments_are_added_for_what_is_shown(file: Path, capsys: Capture) -> None:
    main(["check", "model.py", "--add-ignores"])
    assert "[DL202]" not in file.read_text()
    assert "[DL101]" in file.read_text()
    main(["check", "model.py", "--add-ignores", "--review"])
    assert "[DL202]" in file.read_text()
    assert shown(capsys, "--review") == []


def test_a_baseline_keeps_what_is_hidden(file: Path, capsys: Capture) -> None:
    write = ["check", "model.py", "--baseline", "known.json", "--write-baseline"]
    main([*write, "--review"])
    assert shown(capsys, "--baseline", "known.json", "--review") == []
    main(["check", "model.py", "--baseline", "known.json"])
    assert capsys.readouterr().err == "1 finding known from known.json\n0 findings in 1 file\n"
    main(write)
    assert shown(capsys, "--baseline", "known.json", "--review") == []
    file.write_text(SOURCE.replace('"loss", loss)', '"loss", loss, sync_dist=True)'))
    main(write)
    assert "DL202" not in Path("known.json").read_text()


def test_a_baseline_does_not_take_what_is_hidden_for_known(file: Path, capsys: Capture) -> None:
    main(["check", "model.py", "--baseline", "known.json", "--write-baseline"])
    assert shown(capsys, "--baseline", "known.json", "--review") == [REVIEW]


@pytest.mark.parametrize(
    ("name", "is_test"),
    [
        ("tests/unit/helper.py", True),
        ("test/helper.py", True),
        ("src/test_model.py", True),
        ("src/model_test.py", True),
        ("conftest.py", True),
        ("src/testing/model.py", False),
        ("src/latest.py", False),
        ("tests/project/model.py", False),
    ],
)
def test_in_tests_only_hangs_and_wrong_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, is_test: bool
) -> None:
    """What is above the top of a project does not count: here, tests/project is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests" / "project").mkdir(parents=True)
    (tmp_path / "tests" / "project" / "pyproject.toml").touch()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"{SOURCE}\nx = 1  # distlint: ignore[DL003]\n")
    broken = path.with_name(f"{path.stem}{'_test' if is_test else ''}.ipynb")
    broken.write_text("no notebook")
    review = ["--review"] if is_test else []  # tests may let ranks part on purpose
    main(["check", str(path), str(broken), *review, "--output-format", "json"])
    expected = ["DL202", "DL101"] if is_test else ["DL101", "DL900", "DL000"]
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == expected

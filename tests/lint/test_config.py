"""``[tool.distlint]`` and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distlint.cli import main
from distlint.config import ConfigError, find_config, read_config
from distlint.rules import RULES

HANG = RULES["DL101"].bad[0].source
BOTH = HANG.replace("self.scores)", "self.scores.cuda())")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("src/a.py", "tools/b.py", "src/gen/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(BOTH)
    return tmp_path


def configure(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.distlint]\n{text}\n")


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, str]]:
    capsys.readouterr()
    assert main(["check", "--review", "--output-format", "json", *arguments]) in (0, 1)
    return sorted((Path(each["path"]).as_posix(), each["code"]) for each in json.loads(capsys.readouterr().out))


EVERYWHERE = [(path, code) for path in ("src/a.py", "src/gen/c.py", "tools/b.py") for code in ("DL001", "DL101")]


@pytest.mark.parametrize(
    ("text", "options", "kept"),
    [
        ("", [], lambda path, code: True),
        ('select = ["DL1"]', [], lambda path, code: code == "DL101"),
        ('select = ["dl101"]\nextend-select = ["DL001"]', [], lambda path, code: True),
        ('ignore = ["DL1"]', [], lambda path, code: code == "DL001"),
        ('select = ["DL101"]', ["--select", "DL001"], lambda path, code: code == "DL001"),
        ('ignore = ["DL101"]', ["--select", "DL101"], lambda path, code: code == "DL101"),
        ('ignore = ["DL101"]', ["--ignore", "DL001"], lambda path, code: False),
        ('select = ["DL101"]', ["--extend-select", "DL0"], lambda path, code: True),
        ('exclude = ["gen"]', [], lambda path, code: "gen" not in path),
        ('exclude = ["src/gen/"]', [], lambda path, code: "gen" not in path),
        ('extend-exclude = ["src/*/c.py", "tools"]', [], lambda path, code: path == "src/a.py"),
        ('exclude = ["gen"]', ["--exclude", "tools"], lambda path, code: "tools" not in path),
        ('exclude = ["gen"]', ["--extend-exclude", "tools"], lambda path, code: path == "src/a.py"),
        ('per-path-ignores = {"tools/**" = ["DL1"]}', [], lambda path, code: path[:5] != "tools" or code == "DL001"),
        ('[tool.distlint.per-path-ignores]\n"c.py" = ["DL"]', [], lambda path, code: "c.py" not in path),
        ('select = ["DL101"]', ["--isolated"], lambda path, code: True),
    ],
)
def test_what_is_reported(project: Path, text: str, options: list[str], kept, capsys) -> None:
    configure(project, text)
    assert found(capsys, ".", *options) == [each for each in EVERYWHERE if kept(*each)]


def test_the_nearest_file_with_the_table_counts(project: Path, capsys) -> None:
    configure(project, 'select = ["DL101"]')
    (project / "src/pyproject.toml").write_text("[tool.other]\n")
    assert find_config(project / "src/gen") == project / "pyproject.toml"
    assert {code for _, code in found(capsys, "src/gen")} == {"DL101"}
    configure(project / "src", 'select = ["DL001"]')
    assert {code for _, code in found(capsys, "src/gen", "src/a.py")} == {"DL001"}
    assert {code for _, code in found(capsys, "src", "tools")} == {"DL101"}  # that of the folder around both
    (project / "other.toml").write_text('[tool.distlint]\nselect = ["DL1", "DL0"]\n')
    assert {code for _, code in found(capsys, "src/gen", "--config", "other.toml")} == {"DL101", "DL001"}


def test_patterns_start_from_the_file(project: Path, capsys) -> None:
    configure(project / "src", 'exclude = ["gen/c.py"]')
    assert found(capsys, "src") == EVERYWHERE[:2]


def test_named_files_are_checked_unless_exclusion_is_forced(project: Path, capsys) -> None:
    configure(project, 'exclude = ["gen"]')
    assert found(capsys, "src/gen/c.py") == EVERYWHERE[2:4]
    assert found(capsys, "src/gen/c.py", "src/a.py", "--force-exclude") == EVERYWHERE[:2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('selct = ["DL101"]', "unknown key 'selct' in [tool.distlint]; did you mean 'select'?"),
        ('trainer_bases = ["a.B"]', "did you mean 'trainer-bases'?"),
        ('select = "DL101"', "select in [tool.distlint] must be a list of strings, not 'DL101'"),
        ("ignore = [1]", "ignore in [tool.distlint] must be a list of strings, not [1]"),
        ("review = 1", "review in [tool.distlint] must be true or false, not 1"),
        ('devices = "two"', 'devices in [tool.distlint] must be "one" or "many", not \'two\''),
        ('per-path-ignores = ["DL1"]', "must be a table of patterns and lists of codes"),
        ('per-path-ignores = {"tools/**" = "DL1"}', "per-path-ignores.'tools/**' in [tool.distlint] must be a list"),
        ('per-path-ignores = {"tests/**" = ["DL999"]}', "no rule has the code DL999"),
        ("non-averageable = {a = 1}", "a list of names, or a table of names and reasons"),
        ('select = ["DL12"]', "no rule has the code DL12; did you mean"),
        ("select = [", "is not valid TOML"),
    ],
)
def test_mistakes_are_named(project: Path, text: str, said: str, capsys) -> None:
    configure(project, text)
    assert main(["check", "."]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("distlint: ")
    assert said in err
    assert str(project / "pyproject.toml") in err
    assert main(["check", ".", "--isolated", "--exit-zero"]) == 0


def test_a_table_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\ndistlint = 1\n")
    with pytest.raises(ConfigError, match="must be a table"):
        read_config(tmp_path / "pyproject.toml", RULES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "none.toml"], "no such configuration file: none.toml"),
        (["--select", "DL9000"], "no rule has the code DL9000; did you mean 'DL900'"),
        (["--extend-select", "X"], "no rule has the code X"),
    ],
)
def test_mistakes_on_the_command_line(project: Path, arguments: list[str], said: str, capsys) -> None:
    assert main(["check", ".", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_show_settings(project: Path, capsys) -> None:
    configure(project, 'select = ["DL101"]\ncollectives = ["b.sync", "a.sync"]\nnon-averageable = ["m.kappa"]')
    assert main(["check", ".", "--show-settings"]) == 0
    shown = dict(line.split(" = ") for line in capsys.readouterr().out.splitlines())
    assert shown["file"] == str(project / "pyproject.toml")
    assert shown["select"] == "('DL101',)"
    assert shown["collectives"] == "['a.sync', 'b.sync']"
    assert shown["non-averageable"] == "{'m.kappa': ''}"
    assert shown["rules"] == "DL101"


def test_declared_names_reach_the_rules(project: Path, capsys) -> None:
    source = """\
from sklearn.metrics import f1_score
from lightning.pytorch import LightningModule
from mine import kappa

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("f1", f1_score(batch.y, batch.p), sync_dist=True)
        self.log("kappa", kappa(batch.y, batch.p), sync_dist=True)
"""
    (project / "m.py").write_text(source)

    def lines() -> list[int]:
        capsys.readouterr()
        main(["check", "m.py", "--select", "DL201", "--output-format", "json"])
        return [each["line"] for each in json.loads(capsys.readouterr().out)]

    assert lines() == [7]
    configure(project, 'averageable = ["sklearn.metrics.f1_score"]\nnon-averageable = {"mine.kappa" = "it is a ratio"}')
    assert lines() == [8]
    main(["check", "m.py", "--select", "DL201"])
    assert "it is a ratio" in capsys.readouterr().out
    configure(project, 'non-averageable = ["mine.kappa"]')
    assert lines() == [7, 8]

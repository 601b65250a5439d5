"""``[tool.distlint]`` and the command line."""

from __future__ import annotations

import pytest

from distlint.cli import main
from distlint.config import ConfigError, find_config, read_config
from distlint.retired import RETIRED
from distlint.rules import RULES
from tests.lint.helpers import HANG, UNUSED, WAITS, found, write

BOTH = HANG + UNUSED.replace("DL101", "DL101, DL201, DL999")
FILES = ("src/a.py", "src/gen/c.py", "tools/b.py")
EVERYWHERE = [(path, code) for path in FILES for code in ("DL101", "DL900")]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, src__a=BOTH, tools__b=BOTH, src__gen__c=BOTH))
    return tmp_path


def configure(folder, text):
    write(folder, pyproject_toml=f"[tool.distlint]\n{text}\n")


@pytest.mark.parametrize(
    ("text", "options", "kept"),
    [
        ("", [], lambda path, code: True),
        ('select = ["DL1"]', [], lambda path, code: code == "DL101"),
        ('select = ["dl101"]\nextend-select = ["DL900"]', [], lambda path, code: True),
        ('ignore = ["DL1"]', [], lambda path, code: code == "DL900"),
        ('select = ["DL101"]', ["--select", "DL900"], lambda path, code: code == "DL900"),
        ('ignore = ["DL101"]', ["--select", "DL101"], lambda path, code: code == "DL101"),
        ('ignore = ["DL101"]', ["--ignore", "DL900"], lambda path, code: False),
        ('select = ["DL101"]', ["--extend-select", "DL9"], lambda path, code: True),
        ('exclude = ["gen"]', [], lambda path, code: "gen" not in path),
        ('exclude = ["src/gen/"]', [], lambda path, code: "gen" not in path),
        ('extend-exclude = ["src/*/c.py", "tools"]', [], lambda path, code: path == "src/a.py"),
        ('exclude = ["gen"]', ["--exclude", "tools"], lambda path, code: "tools" not in path),
        ('exclude = ["gen"]', ["--extend-exclude", "tools"], lambda path, code: path == "src/a.py"),
        ('per-path-ignores = {"tools/**" = ["DL1"]}', [],
         lambda path, code: path[:5] != "tools" or code == "DL900"),
        ('[tool.distlint.per-path-ignores]\n"c.py" = ["DL"]', [],
         lambda path, code: "c.py" not in path),
        ('select = ["DL101"]', ["--isolated"], lambda path, code: True),
    ],
)  # fmt: skip
def test_what_is_reported(project, text, options, kept, capsys):
    configure(project, text)
    assert found(capsys, ".", *options) == [each for each in EVERYWHERE if kept(*each)]


def test_the_nearest_file_with_the_table_counts(project, capsys):
    def codes(*options):
        return {code for _, code in found(capsys, *options)}

    configure(project, 'select = ["DL101"]')
    write(project, src__pyproject_toml="[tool.other]\n")
    assert find_config(project / "src/gen") == project / "pyproject.toml"
    assert codes("src/gen") == {"DL101"}
    configure(project / "src", 'select = ["DL900"]')
    assert codes("src/gen", "src/a.py") == {"DL900"}
    assert codes("src", "tools") == {"DL101"}  # that of the folder around both
    write(project, other_toml='[tool.distlint]\nselect = ["DL1", "DL9"]\n')
    assert codes("src/gen", "--config", "other.toml") == {"DL101", "DL900"}
    configure(project / "src", 'exclude = ["gen/c.py"]')  # from where the file is
    assert found(capsys, "src") == EVERYWHERE[:2]


def test_named_files_are_checked_unless_exclusion_is_forced(project, capsys):
    configure(project, 'exclude = ["gen"]')
    assert found(capsys, "src/gen/c.py") == EVERYWHERE[2:4]
    assert found(capsys, "src/gen/c.py", "src/a.py", "--force-exclude") == EVERYWHERE[:2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('selct = ["DL101"]', "unknown key 'selct' in [tool.distlint]; did you mean 'select'?"),
        ('trainer_bases = ["a.B"]', "did you mean 'trainer-bases'?"),
        ("review = true", "unknown key 'review'"),
        ('select = "DL101"', "select in [tool.distlint] must be a list of strings, not 'DL101'"),
        ("ignore = [1]", "ignore in [tool.distlint] must be a list of strings, not [1]"),
        ('devices = "two"', 'devices in [tool.distlint] must be "one" or "many", not \'two\''),
        ("devices = 2", 'must be "one" or "many", not 2'),
        ('per-path-ignores = ["DL1"]', "must be a table of patterns and lists of codes"),
        (
            'per-path-ignores = {"tools/**" = "DL1"}',
            "per-path-ignores.'tools/**' in [tool.distlint]",
        ),
        ('per-path-ignores = {"tests/**" = ["DL999"]}', "no rule has the code DL999"),
        ("non-averageable = {a = 1}", "a list of names, or a table of names and reasons"),
        ('select = ["DL12"]', "no rule has the code DL12; did you mean"),
        ("select = [", "is not valid TOML"),
    ],
)
def test_mistakes_are_named(project, text, said, capsys):
    configure(project, text)
    assert main(["check", "."]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("distlint: ")
    assert said in err
    assert str(project / "pyproject.toml") in err
    assert main(["check", ".", "--isolated", "--exit-zero"]) == 0


def test_a_table_that_is_none(tmp_path):
    write(tmp_path, pyproject_toml="[tool]\ndistlint = 1\n")
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
def test_mistakes_on_the_command_line(project, arguments, said, capsys):
    assert main(["check", ".", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        ('select = ["DL103", "DL101"]', ["DL101"]),
        ('extend-select = ["dl103"]', ["DL101", "DL900"]),
        ('ignore = ["DL103", "DL101"]', ["DL900"]),
        ('per-path-ignores = { "src/a.py" = ["dl103", "DL101"] }', ["DL900"]),
    ],
)
def test_retired_codes_are_told_and_no_error(project, settings, codes, capsys):
    configure(project, settings)
    assert main(["check", "src/a.py"]) == 1
    said = f"distlint: DL103 is retired: {RETIRED['DL103']}\n"
    assert capsys.readouterr().err.startswith(said)
    assert [code for _, code in found(capsys, "src/a.py")] == codes


def test_only_retired_codes_select_no_other_rule(project, capsys):
    configure(project, 'select = ["DL103"]')
    assert ("src/a.py", "DL101") not in found(capsys, "src/a.py")


def test_show_settings(project, capsys):
    names = 'collectives = ["b.sync", "a.sync"]\nnon-averageable = ["m.kappa"]'
    configure(project, f'select = ["DL101"]\ndevices = "many"\n{names}\ntrainer-bases = ["a.B"]')
    assert main(["check", ".", "--show-settings"]) == 0
    shown = dict(line.split(" = ") for line in capsys.readouterr().out.splitlines())
    assert shown["file"] == str(project / "pyproject.toml")
    assert shown["select"] == "('DL101',)"
    assert shown["devices"] == "many"
    assert shown["collectives"] == "['a.sync', 'b.sync']"
    assert shown["non-averageable"] == "{'m.kappa': ''}"
    assert shown["trainer-bases"] == "['a.B']"
    assert shown["rules"] == "DL101"


OWN = "from mine import meet\n\ndef f(rank):\n    if rank == 0:\n        meet()\n"
DERIVED = WAITS.replace("from lightning.pytorch import LightningModule", "from mine import Task")


@pytest.mark.parametrize(
    ("source", "settings", "codes"),
    [
        (OWN, "", []),
        (OWN, 'collectives = ["mine.meet"]', ["DL101"]),
        (OWN, 'collectives = ["meet"]', ["DL101"]),
        (WAITS, 'devices = "many"', ["DL202"]),
        (WAITS, 'devices = "one"', []),
        (WAITS + "Trainer(devices=4)\n", "", ["DL202"]),
        (WAITS + "Trainer(devices=4)\n", 'devices = "one"', []),
        (DERIVED.replace("LightningModule", "Task"), 'devices = "many"', []),
        (DERIVED.replace("LightningModule", "Task"),
         'devices = "many"\ntrainer-bases = ["mine.Task"]', ["DL202"]),
    ],
)  # fmt: skip
def test_what_is_declared_reaches_the_rules(tmp_path, source, settings, codes, capsys):
    configure(write(tmp_path, m=source), settings)
    shown = found(capsys, tmp_path, "--select", "DL101,DL202")
    assert [code for _, code in shown] == codes


@pytest.mark.parametrize("name", ["tests__m", "test_m", "a__test__m", "m_test", "conftest"])
def test_tests_are_told_of_dl1_and_dl2_alone(tmp_path, name, capsys):
    configure(write(tmp_path, **{name: BOTH}), "")
    assert [code for _, code in found(capsys, tmp_path)] == ["DL101"]

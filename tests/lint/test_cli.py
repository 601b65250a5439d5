"""The command line and its exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from distlint import __version__
from distlint.cli import main
from distlint.pages import examples
from distlint.retired import RETIRED
from distlint.rules import RULES
from tests.lint.helpers import ALL, GOOD, HANG, UNUSED, WAITS, environment, found, python, write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, bad=HANG, good=GOOD)


def test_findings_exit_1(folder, capsys):
    assert main(["check", "bad.py"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("bad.py:3:5 DL101 [collective-under-rank-guard] only rank 0 reaches this")
    assert "  guard at bad.py:2: " in out
    assert err == "1 finding in 1 file (1 fixable with --fix --unsafe-fixes)\n"


def test_clean_exits_0(folder, capsys):
    assert main(["check", "good.py"]) == 0
    assert capsys.readouterr() == ("", "0 findings in 1 file\n")
    assert main(["check", "--exit-zero", "bad.py"]) == 0


def test_the_current_folder_is_checked_if_none_is_named(folder, capsys):
    assert main(["check"]) == 1
    assert capsys.readouterr().out.startswith("bad.py:3:5 ")


def test_syntax_error_is_a_finding_and_the_rest_goes_on(folder, capsys):
    write(folder, a_broken="def f(:\n", b_bytes=b"\xff\xfe\xfa", c_ipynb="{}")
    assert found(capsys, ".") == [
        ("a_broken.py", "DL000"),
        ("b_bytes.py", "DL000"),
        ("bad.py", "DL101"),
        ("c.ipynb", "DL000"),
    ]
    assert main(["check", "a_broken.py", "--ignore", "DL000"]) == 0


@pytest.mark.parametrize(
    "command",
    [
        "check no/such/path",
        "check --select DL999 .",
        "check --ignore X .",
        "check - other.py",
        "explain DL101 DL999",
        "facts no/such/path",
        "check --unsafe-fixes .",
        "check --write-baseline .",
        "check --baseline none.json good.py",
        "check - --add-ignores",
        "check --statistics --output-format sarif .",
        "check --output-file no/such/folder/x good.py",
        "check . --jobs -1",
        "check --config none.toml .",
    ],
)
def test_misuse_exits_2(command, folder, capsys):
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("distlint: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        "",
        "frobnicate",
        "check . --output-format pylint",
        "check --review",
        "confirm .",
        "facts --fix",
    ],
)
def test_bad_usage_exits_2(command):
    with pytest.raises(SystemExit) as exit_:
        main(command.split())
    assert exit_.value.code == 2


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyError])
def test_internal_error_exits_2_and_names_the_file(folder, capsys, monkeypatch, kind):
    def fail(_self):
        raise kind

    monkeypatch.setattr(RULES["DL101"], "check", fail)
    assert main(["check", "bad.py"]) == 2
    err = capsys.readouterr().err
    assert "internal error" in err
    assert "bad.py" in err


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ([], ["DL101", "DL900"]),
        (["--select", "DL101"], ["DL101"]),
        (["--select", "dl2,DL9"], ["DL900"]),
        (["--select", "DL900", "--select", "DL101"], ["DL101", "DL900"]),
        (["--ignore", "DL1"], ["DL900"]),
        (["--select", "DL1", "--ignore", "DL101"], []),
        (["--select", "DL1", "--extend-select", "DL900"], ["DL101", "DL900"]),
    ],
)
def test_select_and_ignore(folder, options, codes, capsys):
    write(folder, bad=HANG + UNUSED.replace("DL101", "DL101, DL201"))
    assert [code for _, code in found(capsys, "bad.py", *options)] == codes


@pytest.mark.parametrize("option", ["--select", "--extend-select", "--ignore"])
@pytest.mark.parametrize("code", ["DL103", "dl217", *sorted(RETIRED)[1:3]])
def test_retired_codes_are_told_and_no_error(option, code, folder, capsys):
    assert main(["check", "good.py", option, f"{code},DL101"]) == 0
    said = f"distlint: {code.upper()} is retired: {RETIRED[code.upper()]}\n"
    assert capsys.readouterr().err.startswith(said)
    assert main(["check", "bad.py", option, f"{code},DL101"]) == (option != "--ignore")
    capsys.readouterr()
    assert main(["explain", code]) == 0
    assert capsys.readouterr().out.startswith(f"{code.upper()} is retired: ")


def test_retired_and_current_codes_are_different_and_told_in_a_line():
    assert not RETIRED.keys() & RULES.keys()
    assert all(len(why) < 130 and "\n" not in why for why in RETIRED.values())


@pytest.mark.parametrize(
    ("files", "options", "last"),
    [
        ({"one": WAITS}, [], "1 finding waits"),
        ({"one": WAITS, "two": WAITS}, [], "2 findings wait"),
        ({"one": WAITS, "run_yaml": "devices: 4"}, [], None),
        ({"one": WAITS, "pyproject_toml": '[tool.distlint]\ndevices = "one"'}, [], None),
        ({"one": WAITS}, ["--ignore", "DL2"], None),
        ({"one": WAITS}, ["--select", "DL1"], None),
        ({"one": WAITS.replace(", loss)", ", loss)  # distlint: ignore[DL202]")}, [], None),
        ({"one": WAITS, "two": HANG}, ["--statistics"], "1 finding waits"),
    ],
)
def test_the_last_line_tells_what_waits_for_devices(files, options, last, tmp_path, capsys):
    write(tmp_path, **{"pyproject_toml": "", **files})
    fails = "run_yaml" in files or "--statistics" in options
    assert main(["check", str(tmp_path), *options]) == fails
    err = capsys.readouterr().err.splitlines()
    why = 'for devices = "many" in [tool.distlint]: nothing here says how many run this'
    assert err[-1].startswith(f"{last} {why}" if last else f"{int('run_yaml' in files)} finding")
    shown = found(capsys, tmp_path)
    assert [code for _, code in shown if code == "DL202"] == ["DL202"] * ("run_yaml" in files)


@pytest.mark.parametrize("name", ["-", "src/m.py"])
def test_stdin(name, capsys, monkeypatch, folder):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(HANG.encode())))
    assert main(["check", "-", *(["--stdin-filename", name] if name != "-" else [])]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{name}:3:5 DL101")
    assert "^^^" in out


def test_explain_prints_pages_and_examples(capsys):
    assert main(["explain"]) == 0
    every = capsys.readouterr().out
    assert main(["explain", *[code.lower() for code in RULES]]) == 0
    assert capsys.readouterr().out == every
    for code, rule in RULES.items():
        assert f"{code} {rule.name} (" in every
        assert rule.page() in every
        assert f"# distlint: ignore[{code}]" in every
        shown = [source for kind in ("bad", "good") for _, source in examples(rule, kind)[:2]]
        for line in "\n".join(shown).splitlines():
            assert line.partition("  # expect:")[0].strip() in every
    assert main(["explain", "dl000"]) == 0
    assert capsys.readouterr().out.startswith("DL000\n\nA file")


def test_rules_lists_every_rule_on_a_line_or_for_programs(capsys):
    assert main(["rules"]) == 0
    head, *shown = capsys.readouterr().out.splitlines()
    assert head.split() == ["code", "name", "fix", "finds"]
    assert [line.split()[:2] for line in shown] == [[rule.code(), rule.name] for rule in ALL]
    assert main(["rules", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [item["code"] for item in listed] == list(RULES)
    fields = {"code", "name", "severity", "fix", "several_devices", "summary"}
    assert all(item.keys() == fields for item in listed)
    assert {item["fix"] for item in listed} <= {"no", "safe", "unsafe", "safe, unsafe"}


def test_as_a_program(folder):
    done = python("-m", "distlint", "check", "bad.py")
    assert done.returncode == 1
    assert "DL101" in done.stdout
    code = "import sys; sys.modules['libcst'] = None; from distlint.cli import main; "
    version = python("-c", code + "main(['--version'])")  # quick: nothing that reads Python
    assert version.stdout == f"distlint {__version__}\n"


@pytest.mark.parametrize(
    "command", ["check", "check --format json", "explain", "rules --json", "facts", "check --select DL999"]
)
def test_a_pipe_that_is_closed_ends_a_command_quietly_with_its_usual_exit_code(folder, command):
    usual = python("-m", "distlint", *command.split()).returncode
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        for errors in (subprocess.PIPE, write_end):
            line = [sys.executable, "-m", "distlint", *command.split()]
            done = subprocess.run(line, stdout=write_end, stderr=errors, env=environment(), check=False)
            assert done.returncode == usual
            assert b"Traceback" not in (done.stderr or b"")
            assert b"BrokenPipe" not in (done.stderr or b"")
    finally:
        os.close(write_end)

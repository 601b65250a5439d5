"""The command line: its exit codes, options and settings, and the files that it changes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from distlint import __version__
from distlint.cli import main
from distlint.retired import RETIRED
from distlint.rules import RULES
from tests.lint.helpers import GUARDED, HANG, HEAD, UNUSED, WAITS, called, environment, found, put, python, write
from tests.lint.test_notebook import notebook

BOTH = HANG + UNUSED.replace("DL101", "DL101, DL201, DL999")
FILES = ("src/a.py", "src/gen/c.py", "tools/b.py")
EVERYWHERE = [(path, code) for path in FILES for code in ("DL101", "DL900")]
BEFORE, AFTER = "x = 1\r\ny = 2  # distlint: ignore[DL101] no longer\r\n", "x = 1\r\ny = 2\r\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(folder):
    return write(folder, src__a=BOTH, tools__b=BOTH, src__gen__c=BOTH)


def configure(folder, text):
    write(folder, pyproject_toml=f"[tool.distlint]\n{text}\n")


def told(capsys, *arguments, code=0):
    """Return what a command prints, on stdout and on stderr."""
    capsys.readouterr()
    assert main([*arguments]) == code
    return tuple(capsys.readouterr())


# --- misuse ---------------------------------------------------------------------------------------------------------


MISUSE = """
check no/such/path; check --select DL999 .; check --extend-select X .; check --ignore X .; check - other.py;
explain DL101 DL999; facts no/such/path; check --unsafe-fixes .; check --write-baseline .; check - --add-ignores;
check --baseline none.json good.py; check --statistics --output-format sarif .; check . --jobs -1; check --review;
check --output-file no/such/folder/x good.py; check --config none.toml .; check . --output-format pylint; facts --fix
"""


@pytest.mark.parametrize("command", ["", *MISUSE.split(";")])
def test_misuse_exits_2(command, folder, capsys):
    write(folder, good="x = 1\n")
    try:
        code = main(command.split())
    except SystemExit as stop:  # by argparse
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "distlint: " in err or err.startswith("usage: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('selct = ["DL101"]', "unknown key 'selct' in [tool.distlint]; did you mean 'select'?"),
        ('trainer_bases = ["a.B"]', "did you mean 'trainer-bases'?"),
        ('select = "DL101"', "select in [tool.distlint] must be a list of strings, not 'DL101'"),
        ("ignore = [1]", "ignore in [tool.distlint] must be a list of strings, not [1]"),
        ("devices = 2", 'devices in [tool.distlint] must be "one" or "many", not 2'),
        ('per-path-ignores = ["DL1"]', "must be a table of patterns and lists of codes"),
        ('per-path-ignores = {"tools/**" = "DL1"}', "per-path-ignores.'tools/**' in [tool.distlint]"),
        ('per-path-ignores = {"tests/**" = ["DL999"]}', "no rule has the code DL999"),
        ("non-averageable = {a = 1}", "a list of names, or a table of names and reasons"),
        ('select = ["DL9000"]', "no rule has the code DL9000; did you mean 'DL900'"),
        ("select = [", "is not valid TOML"),
        ("[tool]\ndistlint = 1", "must be a table"),
    ],
)
def test_mistakes_in_settings_are_named(folder, text, said, capsys):
    write(folder, good="x = 1\n", pyproject_toml=text if "[tool]" in text else f"[tool.distlint]\n{text}\n")
    out, err = told(capsys, "check", ".", code=2)
    assert out == ""
    assert said in err
    assert str(folder / "pyproject.toml") in err
    assert main(["check", ".", "--isolated"]) == 0


def test_an_internal_error_exits_2_and_names_the_file(project, capsys, monkeypatch):
    def fail(_self):
        raise KeyError

    monkeypatch.setattr(RULES["DL101"], "check", fail)
    _, err = told(capsys, "check", "src/a.py", code=2)
    assert "internal error" in err
    assert "src/a.py" in err


# --- choice of rules and files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('select = ["dl101"]\nextend-select = ["DL900"]', lambda path, code: True),
        ('exclude = ["src/gen/"]', lambda path, code: "gen" not in path),
        ('extend-exclude = ["src/*/c.py", "tools"]', lambda path, code: path == "src/a.py"),
        ('per-path-ignores = {"tools/**" = ["DL1"]}', lambda path, code: path[:5] != "tools" or code == "DL900"),
        ('[tool.distlint.per-path-ignores]\n"c.py" = ["DL"]', lambda path, code: "c.py" not in path),
    ],
)
def test_what_is_reported(project, text, kept, capsys):
    configure(project, text)
    assert found(capsys, ".") == [each for each in EVERYWHERE if kept(*each)]


def test_the_nearest_file_with_the_table_counts(project, capsys):
    configure(project, 'select = ["DL101"]')
    write(project, src__pyproject_toml="[tool.other]\n")
    assert {code for _, code in found(capsys, "src/gen")} == {"DL101"}
    configure(project / "src", 'select = ["DL900"]\nexclude = ["gen/c.py"]')  # from where the file is
    assert found(capsys, "src") == [("src/a.py", "DL900")]
    assert {code for _, code in found(capsys, "src", "tools")} == {"DL101"}  # that of the folder around both


@pytest.mark.parametrize("name", ["tests__m", "test_m", "a__test__m", "m_test", "conftest"])
def test_tests_are_told_of_dl1_and_dl2_alone(folder, name, capsys):
    configure(write(folder, **{name: BOTH}), "")
    assert [code for _, code in found(capsys, folder)] == ["DL101"]


@pytest.mark.parametrize(
    ("settings", "options", "codes"),
    [
        ('extend-select = ["dl103"]', "", {"DL101", "DL900"}),
        ('per-path-ignores = { "src/a.py" = ["dl103", "DL101"] }', "", {"DL900"}),
        ("", "--select dl103,DL101", {"DL101"}),
        ("", "--ignore DL103,DL101", {"DL900"}),
    ],
)
def test_retired_codes_are_told_and_no_error(project, settings, options, codes, capsys):
    configure(project, settings)
    assert {code for _, code in found(capsys, "src/a.py", *options.split())} == codes
    _, err = told(capsys, "check", "src/a.py", "--exit-zero", *options.split())
    assert err.startswith(f"distlint: DL103 is retired: {RETIRED['DL103']}\n")


def test_retired_and_current_codes_are_different():
    assert not RETIRED.keys() & RULES.keys()


@pytest.mark.parametrize(
    ("files", "options", "last"),
    [
        ({"one": WAITS, "two": WAITS}, "", "2 findings wait"),
        ({"one": WAITS, "run_yaml": "devices: 4"}, "", None),
        ({"one": WAITS, "pyproject_toml": '[tool.distlint]\ndevices = "one"'}, "", None),
        ({"one": WAITS}, "--ignore DL2", None),
        ({"one": WAITS.replace(", loss)", ", loss)  # distlint: ignore[DL202]")}, "", None),
        ({"one": WAITS, "two": HANG}, "--statistics", "1 finding waits"),
    ],
)
def test_the_last_line_tells_what_waits_for_devices(files, options, last, folder, capsys):
    write(folder, **{"pyproject_toml": "", **files})
    told_here = "run_yaml" in files
    err = told(capsys, "check", *options.split(), code=told_here or ("two" in files and last[0] == "1"))[1].splitlines()
    why = 'for devices = "many" in [tool.distlint]: nothing here says how many run this'
    assert err[-1].startswith(f"{last} {why}" if last else f"{int(told_here)} finding")


def test_settings_and_rules_are_shown(project, capsys):
    names = 'collectives = ["b.sync", "a.sync"]\nnon-averageable = ["m.kappa"]'
    configure(project, f'select = ["DL101"]\ndevices = "many"\n{names}\ntrainer-bases = ["a.B"]')
    shown = dict(line.split(" = ") for line in told(capsys, "check", ".", "--show-settings")[0].splitlines())
    assert (shown["file"], shown["select"]) == (str(project / "pyproject.toml"), "('DL101',)")
    assert (shown["devices"], shown["collectives"]) == ("many", "['a.sync', 'b.sync']")
    assert (shown["non-averageable"], shown["trainer-bases"]) == ("{'m.kappa': ''}", "['a.B']")
    assert shown["rules"] == "DL101"
    listed = json.loads(told(capsys, "rules", "--json")[0])
    assert [item["code"] for item in listed] == list(RULES)
    assert all(
        item.keys() == {"code", "name", "severity", "fix", "several_devices", "summary"}
        and item["fix"] in ("no", "safe", "unsafe", "safe, unsafe")
        for item in listed
    )
    assert told(capsys, "explain")[0] == told(capsys, "explain", *map(str.lower, RULES))[0]
    assert told(capsys, "explain", "dl000")[0].startswith("DL000\n\nA file")


def test_what_is_no_terminal_is_not_coloured_unless_asked(project, capsys, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[" not in told(capsys, "check", "src/a.py", code=1)[0]
    assert "\x1b[" in told(capsys, "check", "src/a.py", "--color", "always", code=1)[0]
    main(["check", "src/a.py", "--color", "always", "--output-file", "out.txt"])
    assert "\x1b[" not in Path("out.txt").read_text()


# --- files that are changed -----------------------------------------------------------------------------------------


def test_what_can_be_fixed_is_counted_and_fixed_as_asked(folder, capsys, monkeypatch):
    monkeypatch.setitem(RULES, "DL998", called(put("good()"), safe=False))
    path = write(folder, a="bad(); bad()\ny = 2  # distlint: ignore[DL101]\n") / "a.py"
    assert told(capsys, "check", "a.py", "--statistics", code=1)[0] == (
        "     1  DL900  unused-ignore  (1 with --fix)\n     2  DL998  called  (2 with --fix --unsafe-fixes)\n"
    )
    row = {"code": "DL998", "name": "called", "count": 2, "fixable": 0, "fixable_unsafe": 2}
    rows = told(capsys, "check", "a.py", "--statistics", "--output-format", "json", code=1)[0]
    assert json.loads(rows)[1] == row
    _, err = told(capsys, "check", "a.py", code=1)
    assert err == "3 findings in 1 file (1 fixable with --fix, 2 more with --fix --unsafe-fixes)\n"
    _, err = told(capsys, "check", "a.py", "--fix", code=1)
    fixed = "1 finding fixed in 1 file\n2 findings in 1 file (2 fixable with --fix --unsafe-fixes)\n"
    assert (err, path.read_text()) == (fixed, "bad(); bad()\ny = 2\n")
    _, err = told(capsys, "check", "a.py", "--fix", "--unsafe-fixes")
    assert (err, path.read_text()) == ("2 findings fixed in 1 file\n0 findings in 1 file\n", "good(); good()\ny = 2\n")
    assert told(capsys, "check", "a.py", "--fix")[1] == "0 findings fixed in 0 files\n0 findings in 1 file\n"


def test_a_fix_that_is_undone_is_told(folder, capsys, monkeypatch):
    monkeypatch.setitem(RULES, "DL998", called(put("good(")))
    write(folder, a="bad()\n")
    said = "not fixed, the fix would break the file or raise another finding: a.py:1:1 DL998\n"
    assert said in told(capsys, "check", "a.py", "--fix", code=1)[1]
    assert (folder / "a.py").read_text() == "bad()\n"


@pytest.mark.parametrize(
    ("source", "options", "settings"),
    [
        ("def f(:\n", "", ""),
        (BEFORE, "--ignore DL900", ""),
        (BEFORE, "", 'per-path-ignores = { "a.py" = ["DL900"] }'),
        (WAITS, "", ""),
    ],
)
def test_what_cannot_be_read_or_is_not_reported_is_not_fixed(folder, source, options, settings):
    path = write(folder, a=source) / "a.py"
    configure(folder, settings)
    assert main(["check", "a.py", "--fix", *options.split()]) == ("def f" in source)
    assert path.read_bytes() == source.encode()


def test_of_two_findings_that_which_is_reported_is_fixed(folder):
    configure(write(folder, a=WAITS + BEFORE), 'devices = "many"\nper-path-ignores = { "a.py" = ["DL900"] }')
    assert main(["check", "a.py", "--fix"]) == 0
    text = (folder / "a.py").read_bytes().decode()
    assert text.endswith(BEFORE)
    assert "sync_dist=True" in text


def test_diff_is_a_patch_and_changes_nothing(folder, capfdbinary):
    write(folder, a=BEFORE, b="# distlint: ignore-file[DL101]\nx = 1")
    paths = [folder / "a.py", folder / "b.py"]
    before = [path.read_bytes() for path in paths]
    assert main(["check", "a.py", "b.py", "--diff"]) == 1
    out, err = capfdbinary.readouterr()
    assert [path.read_bytes() for path in paths] == before
    assert err == b"2 findings would be fixed in 2 files\n"
    subprocess.run(["git", "apply", "-p0", "-"], input=out, check=True, cwd=folder)
    assert [path.read_bytes() for path in paths] == [AFTER.encode(), b"x = 1"]
    assert main(["check", "a.py", "b.py", "--diff"]) == 0


@pytest.mark.parametrize("make", [str.encode, notebook], ids=["m.py", "m.ipynb"])
def test_standard_input_is_fixed_to_standard_output(make, monkeypatch):
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(make(BEFORE))))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", newline="", write_through=True))
    name = "m.py" if make is not notebook else "m.ipynb"
    assert main(["check", "-", "--stdin-filename", name, "--fix"]) == 0
    assert out.getvalue() == make(AFTER)


ADDED = "  # distlint: ignore[DL101]"
NO_ROOM = f"{HEAD}if dist.get_rank() == 0 and dist.barrier() \\\n        and x: pass\n"


@pytest.mark.parametrize(
    ("source", "after"),
    [
        (HANG, f"{HANG[:-1]}{ADDED}\n"),
        (HANG[:-2] + "  # why\n    )\n", HANG[:-2] + f"  # why\n    ){ADDED}\n"),
        (f"{HANG[:-1]}  # distlint: ignore[DL201] why\n", f"{HANG[:-1]}  # distlint: ignore[DL201, DL101] why\n"),
        (NO_ROOM, NO_ROOM),
    ],
)
def test_add_ignores(folder, capsys, source, after):
    write(folder, a=source)
    said = "not ignored, the line has no room for a comment: a.py:2:29 DL101\n"
    for number in (1, 0):
        _, err = told(capsys, "check", "a.py", "--add-ignores", "--select", "DL101", code=source is NO_ROOM)
        assert said in err if source is NO_ROOM else err.startswith(f"{number} finding")
        assert (folder / "a.py").read_text() == after


def test_add_ignores_to_a_folder_with_files_that_cannot_be_read(folder, capsys):
    cells = notebook(HEAD, "!ls\n" + GUARDED)
    write(folder, a=HANG + UNUSED, b="def f(:\n", c_ipynb="{}", d_ipynb=cells)
    _, err = told(capsys, "check", ".", "--add-ignores", "--ignore", "DL900", code=1)
    assert err.startswith("2 findings ignored by new comments")
    assert [path.read_text().count("ignore[DL101]") for path in sorted(folder.glob("*.*"))] == [2, 0, 0, 1]


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_pipe_that_is_closed_ends_a_command_quietly_with_its_usual_exit_code(folder, command):
    write(folder, **{f"m{number}": HEAD + GUARDED * 80 for number in range(9)})
    line = [sys.executable, "-m", "distlint", command]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        for errors in (subprocess.PIPE, write_end):
            done = subprocess.run(line, stdout=write_end, stderr=errors, env=environment(), check=False)
            assert done.returncode == (command == "check")
            assert not any(text in (done.stderr or b"") for text in (b"Traceback", b"BrokenPipe", b"Errno"))
    finally:
        os.close(write_end)


def test_the_version_is_told_by_a_program_that_has_not_read_what_reads_python():
    code = "import sys; sys.modules['libcst'] = None; from distlint.cli import main; main(['--version'])"
    assert python("-c", code).stdout == f"distlint {__version__}\n"

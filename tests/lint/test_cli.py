"""The command line: its exit codes, options and settings, and the files that it changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from distlint.cli import main
from distlint.retired import RETIRED
from distlint.rules import RULES
from tests.lint.helpers import GUARDED, HANG, HEAD, UNUSED, WAITS, called, environment, found, put, write
from tests.lint.test_notebook import notebook

BOTH = HANG + UNUSED.replace("DL101", "DL101, DL201, DL999")
BEFORE, AFTER = "x = 1\r\ny = 2  # distlint: ignore[DL101] no longer\r\n", "x = 1\r\ny = 2\r\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys, command, code=0):
    """Return what a command prints, on stdout and on stderr."""
    capsys.readouterr()
    assert main(command.split()) == code
    return tuple(capsys.readouterr())


# --- misuse ---------------------------------------------------------------------------------------------------------


MISUSE = """
check --extend-select X .; check --ignore X .; check - other.py; facts no/such/path; check --unsafe-fixes .;
check --write-baseline .; check - --add-ignores; check --statistics --output-format sarif .; check . --jobs -1;
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
    out, err = told(capsys, "check .", code=2)
    assert out == ""
    assert said in err
    assert str(folder / "pyproject.toml") in err
    told(capsys, "check . --isolated")


def test_an_internal_error_exits_2_and_names_the_file(folder, capsys, monkeypatch):
    def fail(_self):
        raise KeyError

    monkeypatch.setattr(RULES["DL101"], "check", fail)
    _, err = told(capsys, f"check {write(folder, a=HANG)}", code=2)
    assert "internal error" in err
    assert "a.py" in err


# --- choice of rules and files --------------------------------------------------------------------------------------


def test_the_nearest_file_with_the_table_counts(folder, capsys):
    write(folder, src__a=BOTH, src__gen__c=BOTH, pyproject_toml='[tool.distlint]\nselect = ["DL101"]')
    write(folder, src__pyproject_toml="[tool.other]\n", test_m=BOTH)
    assert {code for _, code in found(capsys, "src/gen")} == {"DL101"}
    settings = '[tool.distlint]\nselect = ["DL900"]\nexclude = ["gen/c.py"]'  # from where the file is
    write(folder, src__pyproject_toml=settings)
    assert found(capsys, "src") == [("src/a.py", "DL900")]
    assert {code for _, code in found(capsys, "src", "test_m.py")} == {"DL101"}  # that of the folder around both


@pytest.mark.parametrize("options", ["--select dl103,DL101", "--ignore DL103,DL900", "--extend-select dl103"])
def test_retired_codes_are_told_and_no_error(folder, options, capsys):
    write(folder, conftest=BOTH)  # of tests DL1 and DL2 alone are told
    assert [code for _, code in found(capsys, *options.split())] == ["DL101"]
    _, err = told(capsys, f"check --exit-zero {options}")
    assert err.startswith(f"distlint: DL103 is retired: {RETIRED['DL103']}\n")
    assert not RETIRED.keys() & RULES.keys()


@pytest.mark.parametrize(
    ("text", "options", "last"),
    [
        ("", "", "2 findings wait"),
        ('[tool.distlint]\ndevices = "one"', "", None),
        ("", "--ignore DL2", None),
        ("", "--statistics", "2 findings wait"),
    ],
)
def test_the_last_line_tells_what_waits_for_devices(text, options, last, folder, capsys):
    silent = WAITS.replace(", loss)", ", loss)  # distlint: ignore[DL202]")
    write(folder, pyproject_toml=text, one=WAITS, two=WAITS, three=silent)
    said = told(capsys, f"check {options}")[1].splitlines()[-1]
    why = 'for devices = "many" in [tool.distlint]: nothing in the project says how many run it'
    assert said.startswith(f"{last} {why}" if last else "0 findings in ")


def test_settings_are_shown_and_a_file_is_not_coloured_unless_asked(folder, capsys):
    names = 'collectives = ["b.sync", "a.sync"]\nnon-averageable = ["m.kappa"]\ntrainer-bases = ["a.B"]'
    write(folder, a=BOTH, pyproject_toml=f'[tool.distlint]\nselect = ["DL101"]\ndevices = "many"\n{names}')
    shown = dict(line.split(" = ") for line in told(capsys, "check . --show-settings")[0].splitlines())
    assert (shown["file"], shown["select"]) == (str(folder / "pyproject.toml"), "('DL101',)")
    assert (shown["devices"], shown["collectives"]) == ("many", "['a.sync', 'b.sync']")
    assert (shown["non-averageable"], shown["trainer-bases"]) == ("{'m.kappa': ''}", "['a.B']")
    assert shown["rules"] == "DL101"
    told(capsys, "check --color always --output-file out.txt", code=1)
    assert "\x1b[" not in (folder / "out.txt").read_text()


# --- files that are changed -----------------------------------------------------------------------------------------


def test_what_can_be_fixed_is_counted_and_fixed_as_asked(folder, capsys, monkeypatch):
    monkeypatch.setitem(RULES, "DL998", called(put("good()"), safe=False))
    path = write(folder, a="bad(); bad()\ny = 2  # distlint: ignore[DL101]\n") / "a.py"
    assert told(capsys, "check a.py --statistics", code=1)[0] == (
        "     1  DL900  unused-ignore  (1 with --fix)\n     2  DL998  called  (2 with --fix --unsafe-fixes)\n"
    )
    row = {"code": "DL998", "name": "called", "count": 2, "fixable": 0, "fixable_unsafe": 2}
    assert json.loads(told(capsys, "check a.py --statistics --output-format json", code=1)[0])[1] == row
    _, err = told(capsys, "check a.py", code=1)
    assert err == "3 findings in 1 file (1 fixable with --fix, 2 more with --fix --unsafe-fixes)\n"
    _, err = told(capsys, "check a.py --fix", code=1)
    fixed = "1 finding fixed in 1 file\n2 findings in 1 file (2 fixable with --fix --unsafe-fixes)\n"
    assert (err, path.read_text()) == (fixed, "bad(); bad()\ny = 2\n")
    _, err = told(capsys, "check a.py --fix --unsafe-fixes")
    assert (err, path.read_text()) == ("2 findings fixed in 1 file\n0 findings in 1 file\n", "good(); good()\ny = 2\n")
    assert told(capsys, "check a.py --fix")[1] == "0 findings fixed in 0 files\n0 findings in 1 file\n"
    monkeypatch.setitem(RULES, "DL998", called(put("good(")))
    write(folder, a="bad()\n")
    said = "not fixed, the fix would break the file or raise another finding: a.py:1:1 DL998\n"
    assert said in told(capsys, "check a.py --fix", code=1)[1]
    assert path.read_text() == "bad()\n"


MANY = 'devices = "many"\nper-path-ignores = { "a.py" = ["DL900"] }'


@pytest.mark.parametrize(
    ("source", "options", "settings", "after"),
    [
        ("def f(:\n", "", "", "def f(:\n"),
        (BEFORE, "--ignore DL900", "", BEFORE),
        (WAITS, "", "", WAITS),
        (WAITS + BEFORE, "", MANY, WAITS.replace(", loss)", ", loss, sync_dist=True)") + BEFORE),
    ],
)
def test_what_cannot_be_read_or_is_not_reported_is_not_fixed(folder, source, options, settings, after):
    path = write(folder, a=source, pyproject_toml=f"[tool.distlint]\n{settings}\n") / "a.py"
    assert main(["check", "a.py", "--fix", *options.split()]) == ("def f" in source)
    assert path.read_bytes() == after.encode()


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
        _, err = told(capsys, "check a.py --add-ignores --select DL101", code=source is NO_ROOM)
        assert said in err if source is NO_ROOM else err.startswith(f"{number} finding")
        assert (folder / "a.py").read_text() == after


def test_add_ignores_to_a_folder_with_files_that_cannot_be_read(folder, capsys):
    cells = notebook(HEAD, "!ls\n" + GUARDED)
    write(folder, a=HANG + UNUSED, b="def f(:\n", c_ipynb="{}", d_ipynb=cells)
    _, err = told(capsys, "check . --add-ignores --ignore DL900", code=1)
    assert err.startswith("2 findings ignored by new comments")
    assert [path.read_text().count("ignore[DL101]") for path in sorted(folder.glob("*.*"))] == [2, 0, 0, 1]


# --- processes ------------------------------------------------------------------------------------------------------


def test_a_pipe_that_is_closed_ends_a_command_quietly_with_its_usual_exit_code(folder):
    write(folder, **{f"m{number}": HEAD + GUARDED * 80 for number in range(9)})
    line = [sys.executable, "-m", "distlint", "check"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        for errors in (subprocess.PIPE, write_end):
            done = subprocess.run(line, stdout=write_end, stderr=errors, env=environment(), check=False)
            assert done.returncode == 1
            assert not any(text in (done.stderr or b"") for text in (b"Traceback", b"BrokenPipe", b"Errno"))
    finally:
        os.close(write_end)

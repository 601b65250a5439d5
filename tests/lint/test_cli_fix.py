"""The command line where it changes files, or writes somewhere else than to the terminal."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from distlint.cli import main
from distlint.rules import RULES
from tests.lint.helpers import GUARDED, HANG, HEAD, UNUSED, WAITS, called, put, python, write
from tests.lint.test_notebook import notebook

BEFORE = "x = 1\r\ny = 2  # distlint: ignore[DL101] no longer\r\n"
AFTER = "x = 1\r\ny = 2\r\n"


@pytest.fixture
def unused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, a=BEFORE) / "a.py"


def feed(source, monkeypatch):
    out = io.BytesIO()
    writer = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source)))
    monkeypatch.setattr(sys, "stdout", writer)
    return out


def test_fix(unused, capsys):
    assert main(["check", "a.py"]) == 1
    assert capsys.readouterr().err == "1 finding in 1 file (1 fixable with --fix)\n"
    assert main(["check", "a.py", "--fix"]) == 0
    assert capsys.readouterr().err == "1 finding fixed in 1 file\n0 findings in 1 file\n"
    assert unused.read_bytes() == AFTER.encode()
    assert main(["check", "a.py", "--fix"]) == 0
    assert capsys.readouterr().err == "0 findings fixed in 0 files\n0 findings in 1 file\n"


def test_unsafe_fixes(unused, capsys, monkeypatch):
    monkeypatch.setitem(RULES, "DL998", called(put("good()"), safe=False))
    unused.write_text("bad()\ny = 2  # distlint: ignore[DL101]\n")
    assert main(["check", "a.py"]) == 1
    said = "(1 fixable with --fix, 1 more with --fix --unsafe-fixes)\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(["check", "a.py", "--fix"]) == 1
    assert unused.read_text() == "bad()\ny = 2\n"
    said = "1 finding in 1 file (1 fixable with --fix --unsafe-fixes)\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(["check", "a.py", "--fix", "--unsafe-fixes"]) == 0
    assert unused.read_text() == "good()\ny = 2\n"


def test_a_fix_that_is_undone_is_told(unused, capsys, monkeypatch):
    monkeypatch.setitem(RULES, "DL998", called(put("good(")))
    unused.write_text("bad()\n")
    assert main(["check", "a.py", "--fix"]) == 1
    said = "not fixed, the fix would break the file or raise another finding: a.py:1:1 DL998\n"
    assert said in capsys.readouterr().err
    assert unused.read_text() == "bad()\n"


def test_what_waits_for_devices_is_not_fixed(unused, capsys):
    unused.write_text(WAITS)
    assert main(["check", "a.py", "--fix"]) == 0
    assert unused.read_text() == WAITS
    write(unused.parent, pyproject_toml='[tool.distlint]\ndevices = "many"\n')
    assert main(["check", "a.py", "--fix"]) == 0
    assert "loss, sync_dist=True)" in unused.read_text()


def test_diff_is_a_patch_and_changes_nothing(unused, capfdbinary):
    other = unused.with_name("b.py")
    other.write_bytes(b"# distlint: ignore-file[DL101]\nx = 1")
    before = (unused.read_bytes(), other.read_bytes())
    assert main(["check", "a.py", "b.py", "--diff"]) == 1
    out, err = capfdbinary.readouterr()
    assert (unused.read_bytes(), other.read_bytes()) == before
    assert err == b"2 findings would be fixed in 2 files\n"
    subprocess.run(["git", "apply", "-p0", "-"], input=out, check=True, cwd=unused.parent)
    assert (unused.read_bytes(), other.read_bytes()) == (AFTER.encode(), b"x = 1")
    assert main(["check", "a.py", "b.py", "--diff"]) == 0


def test_a_notebook_is_fixed(unused):
    path = unused.with_suffix(".ipynb")
    path.write_bytes(notebook("!ls\n" + AFTER, BEFORE.replace("\r", "")))
    assert main(["check", str(path), "--fix"]) == 0
    assert path.read_bytes() == notebook("!ls\n" + AFTER, AFTER.replace("\r", ""))


@pytest.mark.parametrize("make", [str.encode, notebook], ids=["m.py", "m.ipynb"])
def test_standard_input_is_fixed_to_standard_output(make, monkeypatch, capsys):
    name = "m.py" if make is not notebook else "m.ipynb"
    for source in (make(BEFORE), make(AFTER)):
        out = feed(source, monkeypatch)
        assert main(["check", "-", "--stdin-filename", name, "--fix"]) == 0
        assert out.getvalue() == make(AFTER)


@pytest.mark.parametrize(
    ("source", "options", "settings"),
    [
        ("def f(:\n", [], ""),
        (BEFORE, ["--ignore", "DL900"], ""),
        (BEFORE, [], 'per-path-ignores = { "a.py" = ["DL900"] }'),
    ],
)
def test_what_cannot_be_read_or_is_not_reported_is_not_fixed(unused, source, options, settings):
    unused.write_bytes(source.encode())
    write(unused.parent, pyproject_toml=f"[tool.distlint]\n{settings}\n")
    assert main(["check", "a.py", "--fix", *options]) == ("def" in source)
    assert unused.read_bytes() == source.encode()


def test_output_file(unused, capsys):
    assert main(["check", "a.py", "--output-format", "json", "--output-file", "out.json"]) == 1
    assert [item["code"] for item in json.loads(Path("out.json").read_text())] == ["DL900"]
    assert capsys.readouterr() == ("", "1 finding in 1 file (1 fixable with --fix)\n")


def test_statistics_tell_what_can_be_fixed(unused, capsys, monkeypatch):
    monkeypatch.setitem(RULES, "DL998", called(put("good()"), safe=False))
    unused.write_text("bad(); bad()\ny = 2  # distlint: ignore[DL101]\n")
    assert main(["check", "a.py", "--statistics"]) == 1
    assert capsys.readouterr().out == (
        "     1  DL900  unused-ignore  (1 with --fix)\n     2  DL998  called  (2 with --fix --unsafe-fixes)\n"
    )
    assert main(["check", "a.py", "--statistics", "--output-format", "json", "--exit-zero"]) == 0
    row = {"code": "DL998", "name": "called", "count": 2, "fixable": 0, "fixable_unsafe": 2}
    assert json.loads(capsys.readouterr().out)[1] == row


ADDED = "  # distlint: ignore[DL101]"


@pytest.mark.parametrize(
    ("source", "after"),
    [
        (HANG, HANG.replace("()\n", f"(){ADDED}\n").replace(f"_rank(){ADDED}", "_rank()")),
        (HANG[:-2] + "  # why\n    )\n", HANG[:-2] + f"  # why\n    ){ADDED}\n"),
        (HANG[:-1] + "  # distlint: ignore[DL201] why\n",
         HANG[:-1] + "  # distlint: ignore[DL201, DL101] why\n"),
    ],
)  # fmt: skip
def test_add_ignores(unused, capsys, source, after):
    unused.write_text(source)
    assert main(["check", "a.py", "--add-ignores", "--select", "DL101"]) == 0
    assert capsys.readouterr().err.startswith("1 finding ignored by new comments")
    assert unused.read_text() == after
    assert main(["check", "a.py", "--add-ignores", "--select", "DL101"]) == 0
    assert unused.read_text() == after


def test_add_ignores_tells_where_no_comment_fits(unused, capsys):
    source = f"{HEAD}if dist.get_rank() == 0 and dist.barrier() \\\n        and x: pass\n"
    unused.write_text(source)
    assert main(["check", "a.py", "--add-ignores", "--select", "DL101"]) == 1
    said = "not ignored, the line has no room for a comment: a.py:2:29 DL101\n"
    assert said in capsys.readouterr().err
    assert unused.read_text() == source


def test_add_ignores_to_a_folder_with_files_that_cannot_be_read(unused, capsys):
    cells = notebook(HEAD, "!ls\n" + GUARDED)
    write(unused.parent, a=HANG + UNUSED, b="def f(:\n", c_ipynb="{}", d_ipynb=cells)
    assert main(["check", ".", "--add-ignores", "--ignore", "DL900"]) == 1
    assert capsys.readouterr().err.startswith("2 findings ignored by new comments")
    assert [p.read_text().count("ignore[DL101]") for p in sorted(Path().glob("*.*"))] == [
        2,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("options", "variables", "coloured"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["--color", "always", "--output-file", "out.txt"], {}, False),
    ],
)
def test_colour(options, variables, coloured, unused, capsys, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["check", "a.py", *options]) == 1
    assert ("\x1b[" in capsys.readouterr().out) is coloured


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    write(tmp_path, **{f"m{number}": HEAD + GUARDED * 80 for number in range(9)})
    code = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'distlint', 'check', sys.argv[1]]\n"
        "p = subprocess.Popen(command, stdout=-1, stderr=-1)\n"
        "p.stdout.close(); sys.stdout.buffer.write(p.stderr.read())\n"
    )
    done = python("-c", code, str(tmp_path))
    assert done.returncode == 0
    assert "Traceback" not in done.stdout
    assert "Errno" not in done.stdout

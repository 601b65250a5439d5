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
from distlint.document import ignore_document
from distlint.engine import check_source
from distlint.model import Example
from distlint.rules import RULES
from tests.lint.helpers import python
from tests.lint.test_fix import Called, put
from tests.lint.test_notebook import notebook
from tests.lint.test_suppress import CALL

TWICE = """\
import torch.distributed as dist

def evaluate(scores):
    main = dist.get_rank() == 0
    total = dist.all_reduce(scores) if main else None
    main and dist.barrier()
"""
UNUSED = "x = 1\r\ny = 2  # distlint: ignore[DL101] no longer\r\n"
FIXED = "x = 1\r\ny = 2\r\n"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_bytes(UNUSED.encode())
    return path


def use(rule: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, rule.code, rule)


def feed(source: bytes, monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", newline="", write_through=True))
    return out


def test_fix(unused: Path, capsys: Capture) -> None:
    assert main(["check", "a.py"]) == 1
    assert capsys.readouterr().err == "1 finding in 1 file (1 fixable with --fix)\n"
    assert main(["check", "a.py", "--fix"]) == 0
    assert capsys.readouterr().err == "1 finding fixed in 1 file\n0 findings in 1 file\n"
    assert unused.read_bytes() == FIXED.encode()
    assert main(["check", "a.py", "--fix"]) == 0
    assert capsys.readouterr().err == "0 findings fixed in 0 files\n0 findings in 1 file\n"


def test_unsafe_fixes(unused: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Called(put("good()", safe=False)), monkeypatch)
    unused.write_text("bad()\ny = 2  # distlint: ignore[DL101]\n")
    assert main(["check", "a.py"]) == 1
    assert capsys.readouterr().err.endswith("(1 fixable with --fix, 1 more with --fix --unsafe-fixes)\n")
    assert main(["check", "a.py", "--fix"]) == 1
    assert unused.read_text() == "bad()\ny = 2\n"
    assert capsys.readouterr().err.endswith("1 finding in 1 file (1 fixable with --fix --unsafe-fixes)\n")
    assert main(["check", "a.py", "--fix", "--unsafe-fixes"]) == 0
    assert unused.read_text() == "good()\ny = 2\n"


def test_a_fix_that_is_undone_is_told(unused: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Called(put("good(")), monkeypatch)
    unused.write_text("bad()\n")
    assert main(["check", "a.py", "--fix"]) == 1
    assert (
        "not fixed, the fix would break the file or raise another finding: a.py:1:1 DL998\n" in capsys.readouterr().err
    )
    assert unused.read_text() == "bad()\n"


def test_diff_is_a_patch_and_changes_nothing(unused: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    other = unused.with_name("b.py")
    other.write_bytes(b"# distlint: ignore-file[DL101]\nx = 1")
    before = (unused.read_bytes(), other.read_bytes())
    assert main(["check", "a.py", "b.py", "--diff"]) == 1
    out, err = capfdbinary.readouterr()
    assert (unused.read_bytes(), other.read_bytes()) == before
    assert err == b"2 findings would be fixed in 2 files\n"
    subprocess.run(["git", "apply", "-p0", "-"], input=out, check=True, cwd=unused.parent)
    assert (unused.read_bytes(), other.read_bytes()) == (FIXED.encode(), b"x = 1")
    assert main(["check", "a.py", "b.py", "--diff"]) == 0


def test_a_notebook_is_fixed(unused: Path) -> None:
    path = unused.with_suffix(".ipynb")
    path.write_bytes(notebook("!ls\n" + FIXED, UNUSED.replace("\r", "")))
    assert main(["check", str(path), "--fix"]) == 0
    assert path.read_bytes() == notebook("!ls\n" + FIXED, FIXED.replace("\r", ""))


@pytest.mark.parametrize("name", ["m.py", "m.ipynb"])
def test_standard_input_is_fixed_to_standard_output(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sources = [UNUSED.encode(), FIXED.encode()] if name == "m.py" else [notebook(UNUSED), notebook(FIXED)]
    for source in sources:
        out = feed(source, monkeypatch)
        assert main(["check", "-", "--stdin-filename", name, "--fix"]) == 0
        assert out.getvalue() == sources[1]


def test_what_is_left_of_standard_input_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source = RULES["DL201"].bad[0].source.encode()
    out = feed(source, monkeypatch)
    assert main(["check", "-", "--fix"]) == 1
    assert out.getvalue() == source
    assert capsys.readouterr().err.startswith("-:8:9 DL201 ")


def test_diff_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    out = feed(UNUSED.encode(), monkeypatch)
    assert main(["check", "-", "--stdin-filename", "m.py", "--diff"]) == 1
    assert out.getvalue().startswith(b"--- m.py\n+++ m.py\n@@ -1,2 +1,2 @@\n x = 1\r\n-y = 2  # dist")


def test_broken_files_are_left_alone(unused: Path) -> None:
    unused.write_text("def f(:\n")
    assert main(["check", "a.py", "--fix"]) == 1
    assert unused.read_text() == "def f(:\n"


def test_ignored_codes_are_not_fixed(unused: Path) -> None:
    assert main(["check", "a.py", "--fix", "--ignore", "DL900"]) == 0
    assert unused.read_bytes() == UNUSED.encode()


def test_what_is_not_reported_for_a_path_is_not_fixed_there(unused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Called(put("good()")), monkeypatch)
    unused.write_text("bad()\ny = 2  # distlint: ignore[DL101]\n")
    (unused.parent / "pyproject.toml").write_text('[tool.distlint]\nper-path-ignores = { "a.py" = ["DL998"] }\n')
    assert main(["check", "a.py", "--fix"]) == 0
    assert unused.read_text() == "bad()\ny = 2\n"


def test_output_file(unused: Path, capsys: Capture) -> None:
    assert main(["check", "a.py", "--output-format", "json", "--output-file", "out.json"]) == 1
    assert [item["code"] for item in json.loads(Path("out.json").read_text())] == ["DL900"]
    assert capsys.readouterr() == ("", "1 finding in 1 file (1 fixable with --fix)\n")


def test_statistics_tell_what_can_be_fixed(unused: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Called(put("good()", safe=False)), monkeypatch)
    unused.write_text("bad(); bad()\ny = 2  # distlint: ignore[DL101]\n")
    assert main(["check", "a.py", "--statistics"]) == 1
    assert capsys.readouterr().out == (
        "     1  DL900  unused-ignore  (1 with --fix)\n     2  DL998  called  (2 with --fix --unsafe-fixes)\n"
    )
    assert main(["check", "a.py", "--statistics", "--output-format", "json", "--exit-zero"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "code": "DL998",
        "name": "called",
        "count": 2,
        "fixable": 0,
        "fixable_unsafe": 2,
    }


def test_add_ignores(unused: Path, capsys: Capture) -> None:
    source = TWICE.replace("main and dist.barrier()", "main and dist.barrier(  # why\n    )")
    unused.write_text(source)
    assert main(["check", "a.py", "--add-ignores", "--select", "DL101"]) == 0
    assert capsys.readouterr().err.startswith("2 findings ignored by new comments")
    assert unused.read_text() == source.replace("else None", "else None  # distlint: ignore[DL101]").replace(
        "    )", "    )  # distlint: ignore[DL101]"
    )
    assert main(["check", "a.py"]) == 0


def test_add_ignores_tells_where_no_comment_fits(unused: Path, capsys: Capture) -> None:
    source = CALL.format(" \\").replace("dist.barrier()", "if main and dist.barrier()") + "        and main: pass\n"
    unused.write_text(source)
    assert main(["check", "a.py", "--add-ignores", "--select", "DL101"]) == 1
    assert "not ignored, the line has no room for a comment: a.py:" in capsys.readouterr().err
    assert unused.read_text() == source


@pytest.mark.parametrize("example", [each for rule in RULES.values() for each in rule.bad])
def test_added_ignores_hide_everything_and_are_added_once(example: Example) -> None:
    rules = list(RULES.values())
    source = example.source.encode()
    done = ignore_document(source, "a.py", rules, check_source(source, "a.py", rules))
    assert (done.findings, done.undone) == ([], [])
    assert ignore_document(done.source, "a.py", rules, done.findings).source == done.source


def test_add_ignores_to_a_comment_that_is_there(unused: Path) -> None:
    source = CALL.format("  # distlint: ignore[DL001] why")
    unused.write_text(source)
    assert main(["check", "a.py", "--add-ignores", "--ignore", "DL9"]) == 0
    assert unused.read_text() == source.replace("[DL001]", "[DL001, DL101]")


@pytest.mark.parametrize(
    ("options", "environment", "coloured"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["--color", "always", "--output-file", "out.txt"], {}, False),
    ],
)
def test_colour(
    options: list[str],
    environment: dict[str, str],
    coloured: bool,
    unused: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["check", "a.py", *options]) == 1
    assert ("\x1b[" in capsys.readouterr().out) is coloured


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"m{number}.py").write_text(RULES["DL101"].bad[0].source * 4)
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'distlint', 'check', sys.argv[1]], stdout=-1, stderr=-1)\n"
        "p.stdout.close(); sys.stdout.buffer.write(p.stderr.read())\n"
    )
    done = python("-c", code, str(tmp_path))
    assert done.returncode == 0
    assert "Traceback" not in done.stdout
    assert "Errno" not in done.stdout

"""Both wheels, built from this tree and installed in empty environments, as users get them."""

from __future__ import annotations

import itertools
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.test_docs import blocks, run_console
from tests.test_install_lines import above_and_first, commands

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("wheels")]


def call(*command: object, code: int = 0, cwd: str | Path = "/") -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def build(project: Path, out: Path) -> Path:
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project)
    (wheel,) = out.glob("*.whl")
    return wheel


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_distlint_wheel_needs_no_torch(tmp_path: Path) -> None:
    wheel = build(ROOT / "lint", tmp_path / "dist")
    assert "distlint/py.typed" in names(wheel)
    assert all(name.startswith(("distlint/", "distlint-")) for name in names(wheel))
    python = environment(tmp_path / "venv")
    call(python, "-m", "pip", "install", "--quiet", wheel)
    installed = call(python, "-m", "pip", "list")
    assert "torch" not in installed
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import lightning as L\n\n\nclass M(L.LightningModule):\n    def on_validation_epoch_end(self):\n"
        "        if self.trainer.is_global_zero:\n            self.all_gather(self.x)\n"
    )
    assert "DL101" in call(python.parent / "distlint", "check", bad, code=1)
    assert "collective-under-rank-guard" in call(python, "-m", "distlint", "explain", "DL101")


def test_distmetrics_wheel(tmp_path: Path) -> None:
    files = names(build(ROOT, tmp_path / "dist"))
    assert {"distmetrics/py.typed", "distmetrics/cli/data/bad_training.py"} <= files
    assert all(name.startswith(("distmetrics/", "torch_distmetrics-", "pytest_distmetrics.py")) for name in files)
    assert "pytest_distmetrics.py" in files


@pytest.mark.long  # torch is installed into an empty environment, which takes minutes
def test_distmetrics_wheel_as_users_install_it(tmp_path: Path) -> None:
    wheel = build(ROOT, tmp_path / "dist")
    python = environment(tmp_path / "venv")
    call(python, "-m", "pip", "install", "--quiet", wheel)
    assert "pip install torch" in call(python, "-c", "import distmetrics", code=1)
    call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel}[torch]")
    program = (
        "import torch; from distmetrics import all_gather; from distmetrics.testing import run;"
        "print(run(2, lambda comm: all_gather(torch.tensor(comm.rank)))[1].tolist())"
    )
    assert "[0, 1]" in call(python, "-W", "ignore", "-c", program)
    call(python, "-m", "pip", "install", "--quiet", f"{wheel}[metrics,test]", "pytest")
    catch_the_first_bug(python, tmp_path / "first")


@pytest.mark.long
def test_the_first_program_runs_after_the_lines_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's first example, as it is printed, where nothing but what the page has named so far is installed."""
    monkeypatch.setenv("PIP_CONSTRAINT", str(ROOT / "constraints.txt"))
    python = environment(tmp_path / "venv")
    page = (ROOT / "README.md").read_text()
    for command in commands(above_and_first(page)[0]):
        call(python, "-m", *command, cwd=ROOT)
    first, shown = next((a, b) for a, b in itertools.pairwise(blocks(page)) if a.file == "first.py")
    (tmp_path / first.file).write_text(first.code)
    assert shown.code.startswith("$ torchrun")
    run_console(shown, tmp_path, python)


def catch_the_first_bug(python: Path, folder: Path) -> None:
    """Do what docs/testing.md tells, where nothing but what it installs is there."""
    folder.mkdir()
    for block in blocks((ROOT / "docs" / "testing.md").read_text()):
        if block.file:
            (folder / block.file).write_text(block.code)
        elif block.language == "console":
            run_console(block, folder, python)

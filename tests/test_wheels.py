"""Both wheels, built from this tree and installed in empty environments, as users get them.

`make release-check` runs all of it: each page's programs, where nothing is installed but what the page's own lines
name, with the wheels in place of the checkout.
"""

from __future__ import annotations

import itertools
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from tests.test_docs import PAGES, ROOT, SAMPLE, blocks, run_console
from tests.test_install_lines import above_and_first, commands

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("wheels")]
BAD = (
    "import lightning as L\n\n\nclass M(L.LightningModule):\n    def on_validation_epoch_end(self):\n"
    "        if self.trainer.is_global_zero:\n            self.all_gather(self.x)\n"
)


def call(*command: object, code: int = 0, cwd: str | Path = "/") -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build both, and return them by the folder that is typed in the checkout."""
    built = {}
    for folder in (".", "./lint"):
        out = tmp_path_factory.mktemp("dist")
        call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT / folder)
        (built[folder],) = out.glob("*.whl")
    return built


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def install(python: Path, wheels: dict[str, Path], *parts: str) -> None:
    """Type what a page tells people to install."""
    named = []
    for part in parts:
        folder, bracket, extras = part.partition("[")
        named.append(f"{wheels.get(folder, folder)}{bracket}{extras}")
    call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *named)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("folder", [".", "lint"])
def test_an_sdist_has_nothing_else(folder: str, tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT / folder)
    with tarfile.open(*tmp_path.glob("*.tar.gz")) as archive:
        found = {name.split("/")[1] for name in archive.getnames()}
    ours = {".": {"distmetrics", "pytest_distmetrics.py", "CHANGELOG.md"}, "lint": {"distlint"}}
    assert found == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"} | ours[folder]


def test_an_old_torch_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.8.0+cpu'")
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import distmetrics"
    assert "needs torch 2.9 or later; 2.8.0+cpu is" in call(sys.executable, "-c", program, code=1)


def test_distlint_wheel_needs_no_torch(wheels: dict[str, Path], tmp_path: Path) -> None:
    assert "distlint/py.typed" in names(wheels["./lint"])
    assert all(name.startswith(("distlint/", "distlint-")) for name in names(wheels["./lint"]))
    python = environment(tmp_path / "venv")
    install(python, wheels, "./lint")
    installed = call(python, "-m", "pip", "list")
    assert "torch" not in installed
    bad = tmp_path / "bad.py"
    bad.write_text(BAD)
    assert "DL101" in call(python.parent / "distlint", "check", bad, code=1)
    assert "collective-under-rank-guard" in call(python, "-m", "distlint", "explain", "DL101")


def test_distmetrics_wheel(wheels: dict[str, Path]) -> None:
    files = names(wheels["."])
    assert {"distmetrics/py.typed", "distmetrics/cli/data/bad_training.py", "pytest_distmetrics.py"} <= files
    assert all(name.startswith(("distmetrics/", "torch_distmetrics-", "pytest_distmetrics.py")) for name in files)


@pytest.mark.release
def test_without_torch_the_error_says_what_to_install(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    install(python, wheels, ".")
    assert "pip install torch" in call(python, "-c", "import distmetrics", code=1)
    install(python, wheels, ".[torch]")
    program = (
        "import torch; from distmetrics import all_gather; from distmetrics.testing import run;"
        "print(run(2, lambda comm: all_gather(torch.tensor(comm.rank)))[1].tolist())"
    )
    assert "[0, 1]" in call(python, "-W", "ignore", "-c", program)


@pytest.mark.release
def test_the_first_program_runs_after_the_lines_above_it(wheels: dict[str, Path], tmp_path: Path) -> None:
    """README's first example, as it is printed, where nothing but what the page has named so far is installed."""
    python = environment(tmp_path / "venv")
    page = PAGES[0].read_text()
    for command in commands(above_and_first(page)[0]):
        install(python, wheels, *(part for part in command[2:] if part != "-e"))
    first, shown = next((a, b) for a, b in itertools.pairwise(blocks(page)) if a.file == "first.py")
    (tmp_path / first.file).write_text(first.code)
    assert shown.code.startswith("$ torchrun")
    run_console(shown, tmp_path, python)


def lines_of(page: Path) -> tuple[str, ...]:
    """Return what a page tells people to install; a page without such a line relies on the README."""
    typed = [shlex.join(each[2:]) for each in commands(page.read_text()) if each[:2] == ["pip", "install"]]
    return tuple(typed) or lines_of(PAGES[0])


def by_lines() -> dict[str, list[Path]]:
    found = defaultdict(list)
    for page in PAGES:
        found["; ".join(lines_of(page))].append(page)
    return found


@pytest.mark.release  # torch is installed into an empty environment, and every page is read
@pytest.mark.parametrize("lines", by_lines())
def test_pages_run_after_their_own_install_lines(lines: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    for line in lines.split("; "):
        install(python, wheels, *(part for part in shlex.split(line) if part != "-e"))
    call(python, "-m", "pip", "check")
    failed = [f"{page.name}: {why}" for page in by_lines()[lines] if (why := fault_of(page, python, tmp_path))]
    assert not failed, "\n\n".join(failed)


def fault_of(page: Path, python: Path, folder: Path) -> str:
    """Run a page's programs, then its commands; return what went wrong, or nothing."""
    here = folder / page.stem
    shutil.copytree(SAMPLE, here)
    found = [block for block in blocks(page.read_text()) if not block.skipped]
    program = "\n".join(block.code for block in found if block.language == "python" and not block.file)
    try:
        call(python, "-W", "ignore", "-c", f"exec({program!r}, {{'__name__': 'docs'}})", cwd=here)
        for block in found:
            if block.file:
                (here / block.file).write_text(block.code)
            elif block.language == "console":
                run_console(block, here, python)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.release
def test_pre_commit_runs_the_linter_from_the_repository(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    for command in (["git", "init", "--quiet"], ["git", "add", "bad.py"]):
        call(*command, cwd=tmp_path)
    hook = [sys.executable, "-m", "pre_commit", "try-repo", ROOT, "distlint", "--files", "bad.py"]
    assert "DL101" in call(*hook, code=1, cwd=tmp_path)


@pytest.mark.release
def test_external_links_lead_somewhere(tmp_path: Path) -> None:
    try:
        socket.getaddrinfo("github.com", 443)
    except socket.gaierror:
        pytest.skip("no way to the internet from here")
    call(sys.executable, "-m", "sphinx", "--builder", "linkcheck", "--quiet", ROOT / "docs", tmp_path, cwd=ROOT)

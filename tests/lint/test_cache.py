"""A second run finds what the first has found, and looks again at all that it depends on."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from distlint.analysis.project import Settings
from distlint.cache import FOLDER, VARIABLE, Cache
from distlint.cli import main
from distlint.model import Finding
from distlint.project import passes
from distlint.rules import RULES
from distlint.run import check_files

ALL = list(RULES.values())
HELPER = "import torch.distributed as dist\n\ndef meet():\n    dist.barrier()\n"
BASE = "from lightning.pytorch import LightningModule\n\nclass Base(LightningModule):\n    pass\n"
CHILD = "from base import Base\n\nclass Child(Base):\n    def f(self, x):\n        return x.cuda()\n"
MAIN = "from helper import meet\n\ndef main(rank):\n    if rank == 0:\n        meet()\n"


class Project:
    """A folder of files and what is found in them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = folder / FOLDER
        self.looked: list[str] = []
        examine = passes._examine

        def spy(task: passes._Task) -> passes.Examined:
            self.looked.append(Path(task.path).name)
            return examine(task)

        monkeypatch.setattr(passes, "_examine", spy)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)

    def check(self, *codes: str, settings: Settings | None = None, cached: bool = True) -> list[Finding]:
        self.looked.clear()
        rules = [RULES[code] for code in codes] if codes else ALL
        settings = settings or Settings()
        cache = Cache(self.cache, [rule.code for rule in rules], settings) if cached else None
        files = sorted(self.folder.glob("*.py"))
        found = check_files(files, rules, jobs=1, settings=settings, cache=cache).findings
        if cache is not None:
            cache.save()
        return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    found = Project(tmp_path, monkeypatch)
    found.write(helper=HELPER, base=BASE, child=CHILD, main=MAIN, other="x = 1\n")
    return found


def test_the_second_run_looks_at_nothing(project: Project) -> None:
    first = project.check()
    assert {Path(each.path).name for each in first} == {"child.py", "main.py"}
    assert set(project.looked) == {"helper.py", "base.py", "child.py", "main.py", "other.py"}
    assert project.check() == first
    assert project.looked == []
    assert project.check(cached=False) == first


@pytest.mark.parametrize(
    ("files", "looked"),
    [
        ({"other": "x = 2\n"}, {"other.py"}),
        ({"base": "class Base:\n    pass\n"}, {"base.py", "child.py"}),
        ({"helper": "def meet():\n    pass\n"}, {"helper.py"}),
        ({"helper": "\n" + HELPER}, {"helper.py", "main.py"}),
        ({"main": MAIN.replace("== 0", "== 1")}, {"main.py"}),
        ({"lightning": "class LightningModule:\n    pass\n"}, {"lightning.py"}),
        ({"other": "class Base:\n    pass\n", "base": "from other import Base\n"}, {"other.py", "base.py", "child.py"}),
        ({"new": "opt = dict(use_distributed_sampler=False)\n"}, {"new.py", "main.py", "child.py"}),
    ],
)
def test_what_has_changed_and_what_depends_on_it_is_looked_at(
    project: Project, files: dict[str, str], looked: set[str]
) -> None:
    project.check()
    project.write(**files)
    found = project.check()
    assert looked <= set(project.looked)
    assert "other.py" in looked or "new" in files or "other.py" not in project.looked
    assert found == project.check(cached=False)


def test_a_file_that_is_gone(project: Project) -> None:
    project.check()
    (project.folder / "base.py").unlink()
    assert project.check() == project.check(cached=False)


def test_rules_and_settings_have_results_of_their_own(project: Project) -> None:
    every = project.check()
    assert [each.code for each in project.check("DL101")] == ["DL101"]
    settings = Settings(trainer_bases=frozenset({"elsewhere.Base"}))
    assert project.check(settings=settings) == every
    assert project.looked
    assert project.check() == every
    assert project.looked == []


def test_a_damaged_cache_is_written_anew(project: Project) -> None:
    first = project.check()
    (file,) = project.cache.glob("*.pickle")
    whole = file.read_bytes()
    for damaged in (b"", b"x", whole[:-1], whole[:100], bytes(reversed(whole)), whole[:-9] + b"!" + whole[-8:]):
        file.write_bytes(damaged)
        assert project.check() == first
        assert project.looked
        assert file.read_bytes()[20:] != damaged[20:]
    assert project.check() == first
    assert project.looked == []


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("evil"),))


def test_a_cache_from_elsewhere_runs_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    first = project.check()
    (file,) = project.cache.glob("*.pickle")
    evil = pickle.dumps(({"a": Evil()}, {}))
    file.write_bytes(hashlib.blake2b(evil, digest_size=20).digest() + evil)
    assert project.check() == first
    assert not Path("evil").exists()


def test_where_it_is_kept(project: Project, monkeypatch: pytest.MonkeyPatch, own_cache: Path, capsys) -> None:
    monkeypatch.chdir(project.folder)
    main(["check", "main.py"])
    assert list(own_cache.glob("*.pickle"))
    monkeypatch.delenv(VARIABLE)
    assert main(["check", "main.py", "--no-cache"]) == 1
    assert not Path(FOLDER).exists()
    assert main(["check", "main.py", "--cache-dir", "here"]) == 1
    assert list(Path("here").glob("*.pickle"))
    Path("sub").mkdir()
    Path("pyproject.toml").write_text("[tool.distlint]\n")
    monkeypatch.chdir("sub")
    assert main(["check", "../main.py"]) == 1
    assert (project.folder / FOLDER / ".gitignore").read_text() == "*\n"
    assert (
        (project.folder / FOLDER / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    )
    assert "warning" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said(project: Project, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(project.folder)
    Path("file").write_text("")
    assert main(["check", "main.py", "--cache-dir", "file/cache"]) == 1
    assert "the cache cannot be written" in capsys.readouterr().err


def test_runs_at_the_same_time(project: Project) -> None:
    command = [sys.executable, "-m", "distlint", "check", str(project.folder), "--review", "--output-format", "json"]
    started = [subprocess.Popen([*command, "--jobs", jobs], stdout=subprocess.PIPE) for jobs in "121"]
    outputs = [process.communicate()[0] for process in started]
    assert outputs[0] == outputs[1] == outputs[2]
    assert subprocess.run(command, capture_output=True).stdout == outputs[0]
    assert len(json.loads(outputs[0])) == 2

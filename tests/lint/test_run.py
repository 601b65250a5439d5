"""Many files: which are checked, with and without processes, and what a second run need not look at again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint import run
from distlint.cache import FOLDER, VARIABLE, Cache, digest, facts_key
from distlint.cli import main
from distlint.config import Config, load_config
from distlint.discover import SKIPPED_FOLDERS, discover, members
from distlint.facts import Base, Facts, scan
from distlint.rules import RULES
from distlint.run import check_files
from tests.lint.helpers import HANG, RELAXED, WAITS, environment, found, write
from tests.lint.test_reporters import FINDINGS

# --- which files ----------------------------------------------------------------------------------------------------


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def names(root, *paths):
    return [str(path.relative_to(root)) for path in discover(paths or [root])]


def test_python_files_and_notebooks_are_found_in_order_and_a_file_with_several_names_once(tmp_path):
    hidden = [f"{folder}/x.py" for folder in (".git", *sorted(SKIPPED_FOLDERS))]
    make(tmp_path, "d/b.py", "a/z.py", "a/data.txt", "a/b/c.ipynb", "script", *hidden)
    for link, target in {"a/x.py": "../d/b.py", "a/y.py": "../d/b.py", "nowhere.py": "missing.py"}.items():
        (tmp_path / link).symlink_to(target)
    os.mkfifo(tmp_path / "pipe.py")
    assert names(tmp_path) == ["a/z.py", "a/b/c.ipynb", "d/b.py"]
    assert names(tmp_path, tmp_path / "a") == ["a/x.py", "a/z.py", "a/b/c.ipynb"]
    assert names(tmp_path, tmp_path / "a/y.py", tmp_path, tmp_path / "a") == ["a/y.py", "a/z.py", "a/b/c.ipynb"]
    for each in ("script", *hidden):  # named files are checked, whatever they are
        assert names(tmp_path, tmp_path / each) == [each]
    for name in ("nowhere.py", "nothing.py", "pipe.py"):
        with pytest.raises(FileNotFoundError, match=name):
            list(discover([tmp_path / name]))


def test_members_are_code_and_settings_but_no_other_project(tmp_path):
    kept = ["pyproject.toml", "a.py", "b.yml", "conf/c.yaml", "d.json", "run.sh", "job.sbatch", "Dockerfile"]
    kept += ["docker/Dockerfile.gpu", "Makefile", "x.slurm", ".gitlab-ci.yml", ".github/workflows/ci.yml"]
    kept += [".circleci/config.yml"]
    other = ["sub/setup.py", "sub/e.py", ".venv/f.py", "build/g.py", "h.txt", "i.ipynb", ".idea/j.xml"]
    make(tmp_path, *kept, *other, "old/k.py", "lib/.git/config", "lib/l.py")
    (tmp_path / "large.json").write_text(" " * (1 << 19))
    found = members(tmp_path, Config(extend_exclude=("old",)))
    assert sorted(str(path.relative_to(tmp_path)) for path in found) == sorted(kept)


def test_what_cannot_be_read_is_told_and_the_rest_is_checked(tmp_path, capsys, monkeypatch):
    write(tmp_path, empty=b"", null=b"x = 1\0\n", utf16="x = 1\n".encode("utf-16"), large=b"#" * (1 << 21))
    write(tmp_path, closed__b="", secret="x = 1\n", **{"folder.py__inside": HANG})
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "itself.py").symlink_to(tmp_path / "itself.py")
    listing, reading = os.scandir, Path.read_bytes

    def refuse(path, call):
        if str(path).endswith(("closed", "secret.py")):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path)

    monkeypatch.setattr(os, "scandir", lambda path: refuse(path, listing))
    monkeypatch.setattr(Path, "read_bytes", lambda path: refuse(path, reading))
    shown = sorted((code, Path(path).name) for path, code in found(capsys, tmp_path))
    unread = ["closed", "large.py", "null.py", "secret.py", "utf16.py"]
    assert shown == [*(("DL000", name) for name in unread), ("DL101", "inside.py")]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_findings_are_the_same_however_a_path_is_spelled(tmp_path, monkeypatch):
    write(tmp_path, setup_cfg="", one__model=WAITS, one__train="T(devices=1).fit(x)")
    write(tmp_path, many__model=WAITS, many__train="T(devices=4).fit(x)")
    monkeypatch.chdir(tmp_path / "one")
    for spell in (os.path.relpath, str, lambda path: str(Path("..", path.relative_to(tmp_path)))):
        files = [spell(tmp_path / name / "model.py") for name in ("one", "many")]
        checked = check_files(files, list(RULES), Config())
        assert [each.path for each in checked.findings] == files[1:]
        assert {each.path for each in checked.waiting} == {files[0]}


# --- a second run ---------------------------------------------------------------------------------------------------

CHILD = "from base import Task\n\nclass Child(Task):\n    def validation_step(self, batch, i):\n"
CHILD += "        loss = self.loss(batch)\n        self.log('loss', loss)\n"
BASE = "from lightning.pytorch import LightningModule\n\nclass Task(LightningModule):\n    pass\n"
_OPTIONS = ("select", "extend_select", "ignore", "exclude", "extend_exclude")
NOTHING = SimpleNamespace(config=None, isolated=False, **dict.fromkeys(_OPTIONS, ()))


class Project:
    """A folder of files and what is found in them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.cache, self.looked = folder, folder / FOLDER, []
        check, scan_ = run._check, run._scan
        monkeypatch.setattr(run, "_check", lambda job: self.looked.append(Path(job.path).name) or check(job))
        monkeypatch.setattr(run, "_scan", lambda job: self.looked.append(f"scan {Path(job[0]).name}") or scan_(job))

    def check(self, *codes, cached=True):
        self.looked.clear()
        asked = list(codes or RULES)
        config = load_config(NOTHING, self.folder, RULES)
        cache = Cache(self.cache, asked) if cached else None
        files = [str(path) for path in discover([self.folder], config)]
        checked = check_files(files, asked, config, jobs=1, cache=cache)
        if cache is not None:
            cache.save()
        return checked.findings, checked.waiting, checked.sources, checked.facts

    def again(self):
        """Return what is found with the cache, which is what is found without."""
        found = self.check()
        looked = list(self.looked)
        assert self.check(cached=False) == found
        self.looked = looked
        return found


@pytest.fixture
def project(tmp_path, monkeypatch):
    files = {"main": HANG, "base": BASE, "child": CHILD, "other": "x = 1\n"}
    write(tmp_path, **files, pyproject_toml="", run_yaml="devices: 4\n")
    return Project(tmp_path, monkeypatch)


ALL_FOUR = {"main.py", "base.py", "child.py", "other.py"}


@pytest.mark.parametrize(
    ("files", "looked"),
    [
        ({}, set()),
        ({"other": "x = 2\n"}, {"other.py"}),
        ({"base": "class Task:\n    pass\n"}, {"base.py", "child.py"}),
        ({"base": BASE + "# a comment\n"}, {"base.py"}),
        ({"main": HANG.replace("== 0", "== 1")}, {"main.py"}),
        ({"run_yaml": "devices: 1\n"}, ALL_FOUR),
        ({"run_yaml": "devices: 4 # four\n"}, set()),
        ({"new_yaml": "monitor: loss\n"}, ALL_FOUR),
        ({"pyproject_toml": '[tool.distlint]\ndevices = "one"\n'}, {"child.py", "main.py"}),
        ({"pyproject_toml": '[tool.distlint]\naverageable = ["a.b"]\n'}, {"child.py", "main.py"}),
    ],
)
def test_what_has_changed_and_what_depends_on_it_is_looked_at(project, files, looked):
    first = project.again()
    assert {"main.py", "scan run.yaml"} < set(project.looked)
    write(project.folder, **files)
    second = project.again()
    if not files:
        assert second == first
        assert [each.statement for each in second[0]] == [each.statement for each in first[0]]
    read = {name for name in project.looked if not name.startswith("scan ")}
    assert looked <= read
    assert read <= looked or "pyproject_toml" in files
    project.again()
    assert project.looked == []


def test_rules_have_results_of_their_own_and_files_may_go(project):
    every = project.check()
    assert [each.code for each in project.check("DL101")[0]] == ["DL101"]
    assert project.check() == every
    assert project.looked == []
    (project.folder / "base.py").unlink()
    (project.folder / "run.yaml").unlink()
    assert len(project.again()[1]) == 0


SHAPES = [b"", b"x", b"[]", b"{}", b'{"scans": 1, "findings": []}', b"[" * 100_000, b"\xff"]
SHAPES += [b'{"scans": {"a.py": 1}, "findings": {"a.py": [[], 2, 3]}}']


def test_a_damaged_cache_is_written_anew(project):
    first = project.check()
    (file,) = project.cache.glob("*.json")
    whole = file.read_bytes()
    cut = [whole[:-1], whole[:100], whole[::-1], whole.replace(b"DL101", b"DL102")]
    for damaged in [*SHAPES, *cut]:
        file.write_bytes(damaged)
        assert project.check() == first
        assert project.looked
        assert file.read_bytes() == whole
    assert project.check() == first
    assert project.looked == []


@RELAXED
@given(st.lists(FINDINGS, max_size=3), st.text(max_size=8))
def test_whatever_is_written_is_read_back(tmp_path, findings, name):
    path = str(tmp_path / "a.py")
    said = f"class {name}(Base): pass\nmonitor = '{name}'\nstrategy = 'ddp'"
    Path(path).write_text("x")
    cache, facts = Cache(tmp_path, ["DL101"]), Facts(averageable=frozenset({name}))
    scanned = scan(said, path)
    cache.keep_scan(path, scanned)
    cache.keep_findings(path, facts, findings)
    cache.save()
    read = Cache(tmp_path, ["DL101"])
    assert read.scan(path) == scanned
    again = read.findings(path, facts)
    assert again == findings
    assert [each.statement for each in again] == [each.statement for each in findings]
    assert read.findings(path, Facts()) is None
    Path(path).write_text("y")
    changed = Cache(tmp_path, ["DL101"])
    assert (changed.scan(path), changed.findings(path, facts)) == (None, None)


def test_every_field_of_the_facts_is_in_their_key():
    bases = {"a": Base(frozenset({"module"}))}
    other = {"devices": "many", "bases": bases, "non_averageable": {"a": "b"}}
    keys = {facts_key(Facts())}
    for name in Facts.__dataclass_fields__:
        plain = getattr(Facts(), name)
        value = other.get(name, not plain if isinstance(plain, bool) else frozenset({"a"}))
        keys.add(facts_key(Facts(**{name: value})))
    assert len(keys) == 1 + len(Facts.__dataclass_fields__)
    assert digest("ab", "c") != digest("a", "bc")


def test_where_it_is_kept(project, monkeypatch, capsys):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(project.folder)
    assert main(["check", "main.py"]) == 1
    assert (project.cache / ".gitignore").read_text() == "*\n"
    assert (project.cache / "CACHEDIR.TAG").read_text()[:43] == "Signature: 8a477f597d28d172789f06886806bc55"
    assert main(["check", "main.py", "--cache-dir", "main.py/cache"]) == 1
    assert "the cache cannot be written" in capsys.readouterr().err


def test_processes_change_nothing_nor_do_runs_at_the_same_time(tmp_path):
    write(tmp_path, **{f"m{n}": HANG + WAITS for n in range(9)}, pyproject_toml="", run_sh="torchrun m1.py\n")
    command = [sys.executable, "-m", "distlint", "check", str(tmp_path), "--output-format", "json"]
    command += ["--cache-dir", str(tmp_path / "kept"), "--jobs"]
    runs = [subprocess.Popen([*command, jobs], stdout=subprocess.PIPE, env=environment()) for jobs in "12"]
    first, second = (json.loads(process.communicate()[0]) for process in runs)
    assert first == second == sorted(first, key=lambda each: each["path"])
    files = sorted(map(str, tmp_path.glob("*.py")))
    alone, together = (check_files(files, list(RULES), Config(), jobs=jobs) for jobs in (1, 2))
    assert alone == together
    assert len(alone.findings) == len(first) == 18

"""A second run finds what the first has found, and looks again at all that it depends on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint import run
from distlint.cache import FOLDER, VARIABLE, Cache, digest, facts_key
from distlint.cli import main
from distlint.config import load_config
from distlint.discover import discover
from distlint.facts import Base, Fact, Facts, scan
from distlint.finding import Finding, Fix, Related
from distlint.rules import RULES
from distlint.run import check_files
from distlint.text import Edit
from tests.lint.helpers import HANG, RELAXED, WAITS, environment, write

CHILD = "from base import Task\n\nclass Child(Task):\n    def validation_step(self, batch, i):\n"
CHILD += "        loss = self.loss(batch)\n        self.log('loss', loss)\n"
BASE = "from lightning.pytorch import LightningModule\n\nclass Task(LightningModule):\n    pass\n"


class Project:
    """A folder of files and what is found in them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.cache, self.looked = folder, folder / FOLDER, []
        check, scan_ = run._check, run._scan

        def spy_check(job):
            self.looked.append(Path(job.path).name)
            return check(job)

        def spy_scan(job):
            self.looked.append("scan " + Path(job[0]).name)
            return scan_(job)

        monkeypatch.setattr(run, "_check", spy_check)
        monkeypatch.setattr(run, "_scan", spy_scan)

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


class NOTHING:
    """The arguments of a command line without any."""

    config, isolated = None, False
    select = extend_select = ignore = exclude = extend_exclude = ()


@pytest.fixture
def project(tmp_path, monkeypatch):
    files = {"main": HANG, "base": BASE, "child": CHILD, "other": "x = 1\n"}
    write(tmp_path, **files, pyproject_toml="", run_yaml="devices: 4\n")
    return Project(tmp_path, monkeypatch)


def test_the_second_run_looks_at_nothing_and_reads_back_what_was_written(project):
    first = project.again()
    assert {Path(each.path).name for each in first[0]} == {"child.py", "main.py"}
    assert {"main.py", "scan run.yaml"} < set(project.looked)
    second = project.again()
    assert second == first
    assert project.looked == []
    assert [each.statement for each in second[0]] == [each.statement for each in first[0]]


@pytest.mark.parametrize(
    ("files", "looked"),
    [
        ({"other": "x = 2\n"}, {"other.py"}),
        ({"base": "class Task:\n    pass\n"}, {"base.py", "child.py"}),
        ({"base": BASE + "# a comment\n"}, {"base.py"}),
        ({"main": HANG.replace("== 0", "== 1")}, {"main.py"}),
        ({"run_yaml": "devices: 1\n"}, {"main.py", "base.py", "child.py", "other.py"}),
        ({"run_yaml": "devices: 4 # four\n"}, set()),
        ({"new_yaml": "monitor: loss\n"}, {"main.py", "base.py", "child.py", "other.py"}),
        ({"pyproject_toml": '[tool.distlint]\ndevices = "one"\n'}, {"child.py", "main.py"}),
        ({"pyproject_toml": '[tool.distlint]\naverageable = ["a.b"]\n'}, {"child.py", "main.py"}),
    ],
)
def test_what_has_changed_and_what_depends_on_it_is_looked_at(project, files, looked):
    project.again()
    write(project.folder, **files)
    project.again()
    read = {name for name in project.looked if not name.startswith("scan ")}
    assert looked <= read
    assert read <= looked or "pyproject_toml" in files
    project.again()
    assert project.looked == []


def test_a_file_that_is_gone(project):
    project.again()
    (project.folder / "base.py").unlink()
    project.again()
    (project.folder / "run.yaml").unlink()
    assert len(project.again()[1]) == 0


def test_rules_have_results_of_their_own(project):
    every = project.check()
    assert [each.code for each in project.check("DL101")[0]] == ["DL101"]
    assert project.check() == every
    assert project.looked == []


NESTED = b"[" * 100_000
SHAPES = [b"", b"x", b"[]", b"{}", b'{"scans": 1, "findings": []}', NESTED, b"\xff"]
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


NAMES = st.text(max_size=8)
EDITS = st.builds(Edit, *[st.integers(1, 9)] * 4, NAMES, st.none() | st.integers(1, 3))
FINDINGS = st.builds(
    Finding,
    st.sampled_from(sorted(RULES)),
    NAMES,
    NAMES,
    st.just("a.py"),
    *[st.integers(1, 9)] * 4,
    fix=st.none() | st.builds(Fix, st.booleans(), st.lists(EDITS, max_size=2).map(tuple)),
    trace=st.lists(st.builds(Related, NAMES, st.integers(1, 9), NAMES, NAMES)).map(tuple),
    statement=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    cell=st.none() | st.integers(1, 3),
    waits=st.booleans(),
)


@RELAXED
@given(st.lists(FINDINGS, max_size=3), NAMES)
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
    assert Fact("a", "b", 1, "c") == Fact("a", "b", 1, "c", "")


def test_where_it_is_kept(project, monkeypatch, own_cache, capsys):
    monkeypatch.chdir(project.folder)
    main(["check", "main.py"])
    assert list(own_cache.glob("*.json"))
    monkeypatch.delenv(VARIABLE)
    assert main(["check", "main.py", "--no-cache"]) == 1
    assert not Path(FOLDER).exists()
    assert main(["check", "main.py", "--cache-dir", "here"]) == 1
    assert list(Path("here").glob("*.json"))
    write(project.folder, pyproject_toml="[tool.distlint]\n", sub__a="")
    monkeypatch.chdir("sub")
    assert main(["check", "../main.py"]) == 1
    assert (project.cache / ".gitignore").read_text() == "*\n"
    tag = (project.cache / "CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert "warning" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said(project, monkeypatch, capsys):
    monkeypatch.chdir(project.folder)
    assert main(["check", "main.py", "--cache-dir", "main.py/cache"]) == 1
    assert "the cache cannot be written" in capsys.readouterr().err


def test_runs_at_the_same_time(tmp_path):
    files = {f"m{n}": HANG + WAITS for n in range(9)}
    write(tmp_path, **files, pyproject_toml="", run_sh="torchrun m1.py\n")
    command = [sys.executable, "-m", "distlint", "check", str(tmp_path)]
    command += ["--output-format", "json", "--cache-dir", str(tmp_path / "kept"), "--jobs"]
    runs = [subprocess.Popen([*command, jobs], stdout=subprocess.PIPE, env=environment()) for jobs in "122"]
    outputs = [process.communicate()[0] for process in runs]
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(json.loads(outputs[0])) == 18

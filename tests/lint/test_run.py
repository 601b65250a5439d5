"""Many files, with and without processes."""

from __future__ import annotations

from pathlib import Path

from distlint.rules import RULES
from distlint.run import check_files

ALL = list(RULES.values())


def test_processes_change_nothing(tmp_path: Path) -> None:
    files = []
    for number, source in enumerate(example.source for rule in ALL for example in rule.bad):
        files.append(tmp_path / f"m{number:02}.py")
        files[-1].write_text(source)
    alone, together = check_files(files, ALL, jobs=1), check_files(files, ALL, jobs=2)
    assert alone.findings
    assert alone == together
    assert alone.files == len(files)
    assert {found.path for found in alone.findings} == {str(path) for path in files} == set(alone.sources)


def test_only_the_given_rules(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(RULES["DL101"].bad[0].source)
    assert check_files([path], [RULES["DL201"]]).findings == []

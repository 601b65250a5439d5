"""distlint's commands, options, settings, comments, reports and exit statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.acceptance import ROOT, environment, python
from tests.acceptance.test_lint_rules import LIGHTNING, REPLICAS, found, write

BAD = (
    "import torch.distributed as dist\n\ndef f(rank):\n    if rank == 0:\n        dist.barrier()\n"
)
TASK = "from lightning.pytorch import LightningModule\nclass Task(LightningModule): pass\n"
UNUSED = "x = 1  # distlint: ignore[DL101] long ago\n"
MISUSE = "explain DL999;check nowhere;check --select DL999;check --config selct;check --unknown"
NAMES = """averageable = ["sklearn.metrics.f1_score"]
    non-averageable = { "torch.nn.functional.cross_entropy" = "for once" }
    collectives = ["torch.cat"]"""
Done = subprocess.CompletedProcess[str]


def lint(folder: Path, command: str, status: int = 1, given: str | None = None) -> Done:
    """Run distlint; with standard input in an interpreter that has imported nothing."""
    words = ["-m", "distlint", *command.split()]
    if given is None:
        done = python(*words, cwd=folder)
    else:
        how = {"capture_output": True, "timeout": 60, "cwd": folder, "env": environment()}
        done = subprocess.run([sys.executable, *words], input=given, text=True, check=False, **how)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("command", MISUSE.split(";"))
def test_misuse_exits_2_and_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "selct").write_text('[tool.distlint]\nselct = ["DL1"]\n')
    done = lint(tmp_path, command, status=2)
    assert done.stdout == ""
    assert command.split()[-1] in done.stderr.splitlines()[-1].replace("/selct", "")


def test_a_file_that_cannot_be_read_is_told_and_the_rest_is_checked(tmp_path: Path) -> None:
    (write(tmp_path, main=BAD, broken="def f(:\n") / "bytes.py").write_bytes(b"\xff\xfe\xfa")
    wanted = [("broken.py", "DL000"), ("bytes.py", "DL000"), ("main.py", "DL101")]
    assert [(path, code) for path, _, code in found(tmp_path)] == wanted


def test_a_comment_silences_the_codes_that_it_names(tmp_path: Path) -> None:
    wanted = {
        ")  # distlint: ignore[DL101] rank 0 is all there is": [],
        "\n)  # distlint: ignore[DL201, DL101, DL900]": [],
        "  # distlint: ignore[DL101]\n)": [],
        ")  # distlint: ignore": [],
        ")  # distlint: ignore[DL201]": ["DL101", "DL900"],
        ")  # distlint: ignore[DL101, DL201]": ["DL900"],
        ")\n# distlint: ignore-file[DL101] rank 0 is all there is": [],
        ")\n'# distlint: ignore-file[DL101]'": ["DL101"],
    }
    write(tmp_path, **{f"m{n}": f"{BAD[:-2]}{text}\n" for n, text in enumerate(wanted)})
    findings = found(tmp_path)
    for n, codes in enumerate(wanted.values()):
        assert [code for path, _, code in findings if path == f"m{n}.py"] == codes


def test_comments_that_ignore_nothing_are_removed_and_missing_ones_added(tmp_path: Path) -> None:
    full = BAD.replace(":\n        dist.barrier()", ": dist.barrier(); \\\n        x = 1")
    write(tmp_path, main=BAD, full=full, kept=UNUSED.replace("DL101", "DL101, DL900"))
    old, head = tmp_path / "old.py", b"# coding: latin-1\r\ny = '\xe9'\r\n"
    old.write_bytes(head + UNUSED.replace("\n", "\r\n").encode())
    old.chmod(0o755)
    assert found(tmp_path, "--select DL201,DL900") == []  # nobody looked for DL101
    assert re.search("1 +DL900 .*--fix", lint(tmp_path, "check --statistics").stdout)
    assert '"insertedContent"' in lint(tmp_path, "check old.py --output-format sarif").stdout
    lint(tmp_path, "check --fix")
    assert (old.read_bytes(), old.stat().st_mode & 0o777) == (head + b"x = 1\r\n", 0o755)
    for _ in range(2):
        assert "full.py:4" in lint(tmp_path, "check --add-ignores").stderr
        assert (tmp_path / "main.py").read_text() == f"{BAD[:-1]}  # distlint: ignore[DL101]\n"


def test_a_baseline_lets_only_new_findings_fail(tmp_path: Path) -> None:
    write(tmp_path, moved=BAD, twice=BAD, other=BAD)
    lint(tmp_path, "check --baseline known.json --write-baseline", status=0)
    moved = BAD.replace("def", "x = 1\ndef").replace("    if", "    while x:\n      if")
    again, changed = BAD + BAD.partition("\n")[2], BAD.replace("barrier()", "barrier(None)")
    write(tmp_path, moved=moved.replace("  dist", "    dist"), twice=again, other=changed)
    wanted = [("other.py", 5, "DL101"), ("twice.py", 9, "DL101")]
    assert found(tmp_path, "--baseline known.json") == wanted
    lines = [line for line in (tmp_path / "known.json").read_text().splitlines() if "DL" in line]
    assert ['"other.py"' in line for line in lines] == [False, True, False]
    lint(tmp_path, "check other.py --baseline known.json --write-baseline", status=0)
    done = lint(write(tmp_path, other=BAD), "check --baseline known.json --output-format concise")
    assert re.findall(r"^\w+.py:\d+", done.stdout, re.MULTILINE) == ["other.py:5", "twice.py:9"]
    assert "gone" in done.stderr


def test_reports_for_people_and_exit_statuses(tmp_path: Path) -> None:
    write(tmp_path, main=BAD, clean="x = 1\n")
    for name, told in {
        "text": r"^main.py:5:9 DL101 \[collective-under-rank-guard\] .+\n"
        r"(.*main.py:4.*\n)(.*\n)* +5 \|         dist.barrier\(\)\n",
        "concise": r"^main.py:5:9: DL101 .+\n$",
        "github": r"^::error file=main.py,line=5,.*title=DL101 .+::.+\n$",
    }.items():
        assert re.search(told, lint(tmp_path, f"check --output-format {name}").stdout)
    coloured = lint(tmp_path, "check --exit-zero --color always --jobs 2", status=0).stdout
    assert re.search("\x1b\\[.*DL101", coloured)
    for variable, is_coloured in ("FORCE_COLOR", True), ("NO_COLOR", False):
        variables = {"NO_COLOR": "", "FORCE_COLOR": "1", variable: "1"}
        shown = python("-m", "distlint", "check", cwd=tmp_path, **variables).stdout
        assert (shown == coloured) is is_coloured
    assert lint(tmp_path, "check clean.py", status=0).stdout == ""
    (count,) = json.loads(lint(tmp_path, "check --statistics --output-format json").stdout)
    assert (count["code"], count["count"]) == ("DL101", 1)


def test_reports_for_programs(tmp_path: Path) -> None:
    def report(name: str) -> str:
        lint(write(tmp_path, main=BAD), f"check --output-format {name} --output-file report")
        return (tmp_path / "report").read_text()

    (finding,) = json.loads(report("json"))
    place = {"path": "main.py", "line": 5, "column": 9, "end_line": 5, "end_column": 23}
    assert finding.items() >= {"code": "DL101", **place}.items()
    assert (finding["trace"][0]["path"], finding["trace"][0]["line"]) == ("main.py", 4)
    (quality,) = json.loads(report("gitlab"))
    assert quality["location"]["positions"]["begin"] == {"line": 5, "column": 9}
    assert {"description", "check_name", "fingerprint", "severity"} <= quality.keys()
    (failure,) = ElementTree.fromstring(report("junit")).iter("failure")
    assert failure.get("message") == finding["message"]
    sarif = json.loads(report("sarif"))
    ((run,), (result,)) = sarif["runs"], sarif["runs"][0]["results"]
    assert (sarif["version"], run["tool"]["driver"]["name"]) == ("2.1.0", "distlint")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "DL101"
    assert (result["level"], result["message"]["text"]) == ("error", finding["message"])
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"] == {"uri": "main.py"}
    assert [*where["region"].values()] == [5, 9, 5, 23]
    assert result["partialFingerprints"]
    assert "How to fix" in run["tool"]["driver"]["rules"][0]["help"]["text"]
    assert result["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 4


def test_notebooks_are_told_and_fixed_by_cell(tmp_path: Path) -> None:
    sources = ["%time x = 1\nimport torch", "%%bash\ndef f(:", f"!ls\n{BAD}", "def f(:", UNUSED]
    output = [{"output_type": "stream", "name": "stdout", "text": ["7"]}]
    code = {"cell_type": "code", "execution_count": 3, "metadata": {}, "outputs": output}
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title"]}]
    cells += [{**code, "source": text.splitlines(keepends=True)} for text in sources]
    path = tmp_path / "train.ipynb"
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook))
    findings = json.loads(lint(tmp_path, "check --output-format json").stdout)
    places = sorted((each["cell"], each["line"], each["code"]) for each in findings)
    assert places == [(4, 6, "DL101"), (5, 1, "DL000"), (6, 1, "DL900")]
    assert findings[-1]["fix"]["safe"] is True
    assert findings[-1]["fix"]["edits"][0]["cell"] == 6
    assert re.search(
        "line=1,.*cell 4, line 6", lint(tmp_path, "check --output-format github").stdout
    )
    assert "train.ipynb:cell 4:6:9 DL101" in lint(tmp_path, "check --fix").stdout
    cells[5]["source"] = ["x = 1\n"]
    assert json.loads(path.read_text()) == notebook


@pytest.mark.parametrize(
    ("settings", "options", "names"),
    [
        ("", "", "a b c"),
        ('select = ["DL3"]\nextend-select = ["DL211"]', "", "b"),
        ('ignore = ["DL211"]', "--ignore DL1", ""),
        ('select = ["DL101"]', "--select dl2,DL3", "b"),
        ('select = ["DL3"]', "--extend-select DL101 src", "a"),
        ('per-path-ignores = { "src/*" = ["DL101"] }\nextend-exclude = ["b.py"]', "", "c"),
        ('exclude = ["src"]', "src/a.py", "a"),
        ('exclude = ["src"]', "--force-exclude src/a.py tools/c.py", "c"),
        ("", "--exclude tools --extend-exclude src/b.py", "d a e"),
        ('select = ["DL2"]', "--isolated", "a b c"),
        ('select = ["DL1"]', "--config src/other.toml", "b"),
    ],
)
def test_findings_are_chosen_by_code_and_by_path(
    tmp_path: Path, settings: str, options: str, names: str
) -> None:
    write(tmp_path, settings, src__a=BAD, src__b=REPLICAS, tools__c=BAD, build__d=BAD)
    write(tmp_path / "venv", e=BAD)
    write(tmp_path / ".hidden", f=BAD)
    (tmp_path / "src" / "other.toml").write_text('[tool.distlint]\nselect = ["DL2"]\n')
    assert " ".join(Path(path).stem for path, *_ in found(tmp_path, options)) == names


def test_settings_are_those_of_the_nearest_file_and_can_be_shown(tmp_path: Path) -> None:
    write(write(tmp_path, main=BAD) / "src", 'select = ["DL2"]', main=BAD)
    shown = lint(tmp_path, "check src --show-settings", status=0).stdout
    assert str(tmp_path / "src" / "pyproject.toml") in shown
    assert (found(tmp_path, "src"), len(found(tmp_path))) == ([], 2)


def test_settings_name_functions_of_ones_own(tmp_path: Path) -> None:
    report = lint(write(tmp_path, NAMES, main=LIGHTNING), "check --output-format concise").stdout
    findings = set(re.findall(r"main.py:(\d+):\d+: (DL\d+)", report))
    lines = {line.strip(): str(number) for number, line in enumerate(LIGHTNING.splitlines(), 1)}
    assert (lines["print(torch.cat(self.kept).mean(), x)"], "DL101") in findings
    assert (lines['self.log("synced", loss, sync_dist=True)'], "DL201") in findings
    assert (lines['self.log("score", f1, sync_dist=True)  # DL201'], "DL201") not in findings
    assert "for once" in report


def test_what_needs_several_devices_is_told_where_there_are_some(tmp_path: Path) -> None:
    alone = LIGHTNING.partition("trainer = Trainer(")[0]
    for settings, program in ("", LIGHTNING), ('devices = "many"', alone):
        assert "DL202" in str(found(write(tmp_path, settings, main=program)))
    assert "DL202" not in str(found(write(tmp_path, main=alone)))


def test_one_device_in_the_settings_counts_for_more_than_the_trainer(tmp_path: Path) -> None:
    assert "DL202" not in str(found(write(tmp_path, 'devices = "one"', main=LIGHTNING)))


def test_bases_are_followed_into_other_files_and_settings(tmp_path: Path) -> None:
    program = "import mine\nclass Model(mine.Task):\n    def f(self, x): return x.cuda()\n"
    trained = f"{program}import lightning\nlightning.Trainer(devices=4).fit(Model())\n"
    reported = [("main.py", 3, "DL001")]
    assert found(write(tmp_path, main=trained, mine=TASK)) == reported
    assert found(write(tmp_path, mine="class Task: pass\n")) == []
    (tmp_path / "mine.py").unlink()
    assert found(write(tmp_path, 'devices = "many"', main=program)) == []
    settings = 'devices = "many"\ntrainer-bases = ["mine.Task"]'
    assert found(write(tmp_path, settings)) == reported


def test_tests_are_told_of_dl1_and_dl2_alone(tmp_path: Path) -> None:
    codes = {code for *_, code in found(write(tmp_path, tests__test_model=LIGHTNING))}
    assert {"DL201", "DL202"} <= codes
    assert {code[:3] for code in codes} <= {"DL1", "DL2"}


def test_standard_input_is_checked_and_fixed(tmp_path: Path) -> None:
    done = lint(tmp_path, "check - --stdin-filename src/m.py", given=BAD + UNUSED)
    assert done.stdout.startswith("src/m.py:5:9 DL101 ")
    assert lint(tmp_path, "check - --fix", given=BAD + UNUSED).stdout == f"{BAD}x = 1\n"


def test_nothing_that_is_checked_is_imported_nor_is_torch(tmp_path: Path) -> None:
    write(tmp_path, torch="raise SystemExit(7)\n", main=f"{BAD}\nraise SystemExit(7)\n")
    assert "main.py:5" in lint(tmp_path, "check", given="").stdout
    assert re.fullmatch(r"distlint \d+\.\d+.*\n", lint(tmp_path, "--version", 0).stdout)


def test_the_cache_finds_the_same_and_is_all_that_is_written(tmp_path: Path) -> None:
    hook = "def on_test_end(self):\n        if self.trainer.is_global_zero: self.all_gather(self.x)"
    write(tmp_path, mine=TASK, main=f"import mine\nclass Model(mine.Task):\n    {hook}\n")
    before = {*tmp_path.rglob("*")}
    first = found(tmp_path, "--no-cache")
    assert {*tmp_path.rglob("*")} == before
    assert found(tmp_path) == found(tmp_path) == first == [("main.py", 4, "DL101")]
    cache = tmp_path / ".distlint_cache"
    assert all(cache in path.parents for path in {*tmp_path.rglob("*")} - before - {cache})
    write(tmp_path, mine="class Task:\n    def all_gather(self, x): return x\n")
    assert found(tmp_path) == found(tmp_path, "--cache-dir kept") == []
    python("-m", "distlint", "check", cwd=tmp_path, DISTLINT_CACHE_DIR=str(tmp_path / "mine"))
    assert [*(tmp_path / "kept").iterdir()] != [] != [*(tmp_path / "mine").iterdir()]


def test_the_language_server_tells_findings_pages_and_ignores(tmp_path: Path) -> None:
    pytest.importorskip("pygls")
    file = {"uri": (tmp_path / "m.py").as_uri()}
    text = f"{BAD}{UNUSED}{REPLICAS}"
    first, last = {"line": 4, "character": 10}, {"line": 5, "character": 20}
    place = {"textDocument": file, "position": first, "range": {"start": first, "end": last}}
    options = {"capabilities": {}, "initializationOptions": {"ignore": ["DL211"]}}
    given = ""
    for method, params in {
        "initialize": {"processId": None, "rootUri": None, **options},
        "textDocument/didOpen": {
            "textDocument": {**file, "languageId": "python", "version": 1, "text": text}
        },
        "textDocument/hover": place,
        "textDocument/codeAction": {**place, "context": {"diagnostics": []}},
        "shutdown": None,
        "exit": None,
    }.items():
        number = {} if method in ("textDocument/didOpen", "exit") else {"id": len(given)}
        body = json.dumps({"jsonrpc": "2.0", **number, "method": method, "params": params})
        given += f"Content-Length: {len(body)}\r\n\r\n{body}"
    said = lint(tmp_path, "server", 0, given).stdout
    assert set(re.findall('"code": ?"(DL[0-9]+)"', said)) == {"DL101", "DL900"}
    for told in ("# DL101 collective", "# distlint: ignore[DL101]", "source.fixAll.distlint"):
        assert told in said


def test_rules_and_explain_print_every_rule(tmp_path: Path) -> None:
    listed = json.loads(lint(tmp_path, "rules --json", 0).stdout)
    rules = {each["code"]: each["name"] for each in listed}
    kept = "1 2 3 4 5 101 102 109 110 201 202 203 204 205 208 209 211 212 301 302 304 900"
    assert rules.keys() >= {f"DL{int(number):03}" for number in kept.split()}
    lint(tmp_path, "rules --pages docs", 0)
    commands = ("rules", "explain --markdown", "explain dl101 DL201")
    listed, pages, page = (lint(tmp_path, command, 0).stdout for command in commands)
    for code, name in rules.items():
        assert re.search(rf"^{code} +{name} ", listed, re.MULTILINE)
        assert f"# {code} {name}" in pages
        assert f"# {code} {name}" in (tmp_path / "docs" / f"{code}.md").read_text()
    assert all(text in page for text in ("DL201", "How to fix", "# distlint: ignore[DL101]"))


def test_the_hook_and_the_action_call_the_command_as_it_is(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (ROOT / hook["additional_dependencies"][0] / "pyproject.toml").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        str(project["optional-dependencies"][name]) for name in ("lint", "demo", "all", "dev")
    ]
    assert all(re.search(r"lint\b|\[all\]", extra) for extra in extras)
    write(tmp_path, main=BAD)
    lint(tmp_path, hook["entry"].removeprefix("distlint ") + " main.py")
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    assert inputs.keys() >= {"paths", "args", "python-version", "sarif"}
    action = (ROOT / "action.yml").read_text().replace('"$RUNNER_TEMP/distlint.sarif"', "report")
    (to_sarif, to_log) = re.findall(r'distlint check (.*) "\$@"', action)
    lint(tmp_path, f"check {to_sarif} main.py", status=0)
    assert "2.1.0" in (tmp_path / "report").read_text()
    assert "::error" in lint(tmp_path, f"check {to_log} main.py").stdout

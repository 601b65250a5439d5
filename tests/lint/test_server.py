"""The language server, talked to as an editor does: over the pipes of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from distlint.model import Edit
from distlint.rules import RULES
from distlint.text import Text
from tests.lint.helpers import environment, python

pytest.importorskip("pygls")

URI = "file:///project/m%20%C3%A9.py"
SOURCE = (
    "import torch.distributed as dist\n"
    "if dist.get_rank() == 0:\n"
    "    '\U0001f600'; dist.barrier()\n"
    "x = 1  # distlint: ignore[DL201] long ago\n"
)
REVIEW = """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
"""
Json = dict[str, Any]


class Editor:
    """A client that reads and writes one message at a time."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-m", "distlint", "server"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment())
        self._last = 0
        self.capabilities = self.ask(
            "initialize", processId=None, rootUri=None, capabilities={}, initializationOptions=options
        )["capabilities"]
        self.tell("initialized")

    def __enter__(self) -> Editor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: BaseException | TracebackType | None) -> None:
        if kind is None:
            self.ask("shutdown")
            self.tell("exit")
            assert self._process.wait(30) == 0
        self._process.kill()
        self._process.communicate()

    def tell(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Any:
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        answer = self._receive()
        while answer.get("id") != self._last:
            answer = self._receive()
        assert "error" not in answer, answer
        return answer["result"]

    def wait_for(self, method: str) -> Json:
        message = self._receive()
        while message.get("method") != method:
            message = self._receive()
        params: Json = message["params"]
        return params

    def diagnostics(self) -> list[Json]:
        found: list[Json] = self.wait_for("textDocument/publishDiagnostics")["diagnostics"]
        return found

    def open(self, text: str, uri: str = URI) -> list[Json]:
        self.tell("textDocument/didOpen", textDocument={"uri": uri, "languageId": "python", "version": 1, "text": text})
        return self.diagnostics()

    def change(self, version: int, text: str) -> None:
        document = {"uri": URI, "version": version}
        self.tell("textDocument/didChange", textDocument=document, contentChanges=[{"text": text}])

    def actions(self, line: int, only: list[str] | None = None) -> list[Json]:
        where = {"start": {"line": line, "character": 20}, "end": {"line": line, "character": 20}}
        context = {"diagnostics": [], **({"only": only} if only else {})}
        found: list[Json] = self.ask("textDocument/codeAction", textDocument={"uri": URI}, range=where, context=context)
        return found

    def _send(self, message: Json) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> Json:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        length = 0
        while (line := self._process.stdout.readline()) != b"\r\n":
            if not line:
                raise AssertionError(self._process.stderr.read().decode())
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: Json = json.loads(self._process.stdout.read(length))
        return message


@pytest.fixture
def editor() -> Iterator[Editor]:
    with Editor() as made:
        yield made


def changed(text: str, action: Json) -> str:
    """The text after an action; places count UTF-16, and these tests put nothing wide before an edit."""
    edits = [
        Edit(
            *(edit["range"][end][key] + 1 for end in ("start", "end") for key in ("line", "character")), edit["newText"]
        )
        for edit in action["edit"]["changes"][URI]
    ]
    return Text(text).edited(edits).text


def test_diagnostics(editor: Editor) -> None:
    first, second = editor.open(SOURCE)
    assert first["range"] == {"start": {"line": 2, "character": 10}, "end": {"line": 2, "character": 24}}, (
        "UTF-16 counts"
    )
    assert (first["code"], first["severity"], first["source"]) == ("DL101", 1, "distlint")
    assert first["message"] == "only rank 0 reaches this barrier: it waits for ever"
    assert first["codeDescription"]["href"].endswith("/rules/dl101.py")
    (related,) = first["relatedInformation"]
    assert related["message"] == "guard: if dist.get_rank() == 0"
    assert related["location"]["uri"] == URI
    assert related["location"]["range"]["start"]["line"] == 1
    assert (second["code"], second["severity"], second["tags"]) == ("DL900", 2, [1])


def test_a_place_in_another_file(editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    helper = tmp_path / "helper.py"
    helper.write_text("import torch.distributed as dist\n\ndef meet():\n    dist.barrier()\n")
    source = "from helper import meet\n\ndef main(rank):\n    if rank == 0:\n        meet()\n"
    (found,) = editor.open(source, (tmp_path / "main.py").as_uri())
    uris = [related["location"]["uri"] for related in found["relatedInformation"]]
    assert uris == [(tmp_path / "main.py").as_uri(), helper.as_uri()]
    assert found["relatedInformation"][1]["location"]["range"]["start"] == {"line": 3, "character": 0}


def test_changes_are_checked_after_a_pause_and_on_save(editor: Editor) -> None:
    assert len(editor.open(SOURCE)) == 2
    editor.change(2, "x = (\n")
    editor.change(3, "x = 1\n")
    params = editor.wait_for("textDocument/publishDiagnostics")
    assert (params["version"], params["diagnostics"]) == (3, [])
    editor.change(4, SOURCE)
    editor.tell("textDocument/didSave", textDocument={"uri": URI})
    assert len(editor.diagnostics()) == 2
    editor.tell("textDocument/didClose", textDocument={"uri": URI})
    assert editor.diagnostics() == []


def test_a_file_that_cannot_be_parsed(editor: Editor) -> None:
    (found,) = editor.open("def f(:\n")
    assert found["code"] == "DL000"
    assert "codeDescription" not in found
    (found,) = editor.open("# coding: none-such\n", "file:///other.py")
    assert found["code"] == "DL000"
    assert editor.open("# coding: latin-1\nx = '\u00e9\u2192'\n", "untitled:Untitled-1") == []


def test_what_is_for_review_is_a_hint_and_is_not_fixed_along(editor: Editor) -> None:
    (found,) = editor.open(REVIEW)
    assert (found["code"], found["severity"]) == ("DL202", 4)
    assert [action["kind"] for action in editor.actions(5)] == ["quickfix", "quickfix"]
    assert editor.actions(5, ["source.fixAll"]) == []


def test_actions_of_a_finding(editor: Editor) -> None:
    editor.open(SOURCE)
    fix, everything = editor.actions(3)
    assert (fix["title"], fix["kind"], fix["isPreferred"]) == ("distlint: fix DL900", "quickfix", True)
    assert changed(SOURCE, fix) == SOURCE.replace("  # distlint: ignore[DL201] long ago", "")
    assert everything["kind"] == "source.fixAll.distlint"
    assert changed(SOURCE, everything) == changed(SOURCE, fix)
    (ignore,) = editor.actions(2, ["quickfix"])
    assert ignore["title"] == "distlint: ignore DL101 here"
    assert [each["code"] for each in ignore["diagnostics"]] == ["DL101"]
    (edit,) = ignore["edit"]["changes"][URI]
    assert edit["newText"] == "  # distlint: ignore[DL101]"
    assert edit["range"]["start"] == {"line": 2, "character": 24}
    assert editor.actions(0, ["quickfix"]) == []
    assert [each["kind"] for each in editor.actions(0, ["source.fixAll"])] == ["source.fixAll.distlint"]
    assert editor.actions(3, ["refactor"]) == []


def test_actions_are_of_the_file_as_it_is(editor: Editor) -> None:
    editor.open(SOURCE)
    editor.change(2, "\n" + SOURCE)
    (ignore,) = editor.actions(3, ["quickfix"])
    assert ignore["edit"]["changes"][URI][0]["range"]["start"]["line"] == 3


def test_hover_shows_the_page(editor: Editor) -> None:
    editor.open(SOURCE)
    hover = editor.ask("textDocument/hover", textDocument={"uri": URI}, position={"line": 2, "character": 12})
    assert hover["contents"]["kind"] == "markdown"
    assert hover["contents"]["value"].startswith("# DL101 ")
    assert editor.ask("textDocument/hover", textDocument={"uri": URI}, position={"line": 0, "character": 0}) is None


def test_options() -> None:
    with Editor(select=["dl1"], ignore=[]) as editor:
        assert [found["code"] for found in editor.open(SOURCE)] == ["DL101"]
    with Editor(ignore=["DL101"]) as editor:
        assert [found["code"] for found in editor.open(SOURCE)] == ["DL900"]


def test_the_configuration_and_the_other_files_of_the_project(tmp_path: Path, editor: Editor) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.distlint]\nper-path-ignores = { "tests/*" = ["DL1"] }\n')
    (tmp_path / "mine.py").write_text("import torch.distributed as dist\ndef wait():\n    dist.barrier()\n")
    source = "import mine\ndef f(rank):\n    if rank == 0:\n        mine.wait()\n"
    assert [found["code"] for found in editor.open(source, (tmp_path / "main.py").as_uri())] == ["DL101"]
    assert editor.open(source, (tmp_path / "tests" / "main.py").as_uri()) == []
    (tmp_path / "pyproject.toml").write_text("[tool.distlint]\nselct = []\n")
    editor.tell("textDocument/didSave", textDocument={"uri": (tmp_path / "main.py").as_uri()})
    said = editor.wait_for("window/showMessage")
    assert said["type"] == 1
    assert "selct" in said["message"]


def test_without_pygls_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['pygls'] = None; from distlint.cli import main; sys.exit(main(['server']))"
    done = python("-c", code)
    assert done.returncode == 2
    assert "pip install pygls" in done.stderr


def test_every_rule_has_a_file_to_show(editor: Editor) -> None:
    shown = {found["code"]: found for rule in RULES.values() for found in editor.open(rule.bad[0].source)}
    assert set(RULES) - set(shown) == set()
    for code, found in shown.items():
        path = Path(found["codeDescription"]["href"].removeprefix("file://"))
        assert path.name == f"{code.lower()}.py"
        assert path.exists()

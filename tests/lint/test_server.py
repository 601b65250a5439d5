"""The language server, talked to as an editor does: over the pipes of a process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from distlint.pages import examples
from distlint.rules import RULES
from distlint.text import Edit, Text
from tests.lint.helpers import HANG, WAITS, environment, python, write

pytest.importorskip("pygls")

URI = "file:///project/m%20%C3%A9.py"
COMMENT = "  # distlint: ignore[DL201] long ago"
SOURCE = (
    f"import torch.distributed as dist\nif dist.get_rank() == 0:\n    '\U0001f600'; dist.barrier()\nx = 1{COMMENT}\n"
)


class Editor:
    """A client that reads and writes one message at a time."""

    def __init__(self, **options):
        command, pipe = [sys.executable, "-m", "distlint", "server"], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment())
        self._last = 0
        given = {"processId": None, "rootUri": None, "capabilities": {}}
        self.ask("initialize", **given, initializationOptions=options)
        self.tell("initialized")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_rest):
        if kind is None:
            self.ask("shutdown")
            self.tell("exit")
            assert self._process.wait(30) == 0
        self._process.kill()
        self._process.communicate()

    def tell(self, method, **params):
        self._send({"method": f"textDocument/{method}" if method[:3] == "did" else method, "params": params})

    def ask(self, method, **params):
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        answer = self._receive()
        while answer.get("id") != self._last:
            answer = self._receive()
        assert "error" not in answer, answer
        return answer["result"]

    def wait_for(self, method):
        message = self._receive()
        while message.get("method") != method:
            message = self._receive()
        return message["params"]

    def diagnostics(self):
        return self.wait_for("textDocument/publishDiagnostics")["diagnostics"]

    def open(self, text, uri=URI):
        self.tell("didOpen", textDocument={"uri": uri, "languageId": "python", "version": 1, "text": text})
        return self.diagnostics()

    def change(self, version, text):
        self.tell("didChange", textDocument={"uri": URI, "version": version}, contentChanges=[{"text": text}])

    def save(self, uri=URI):
        self.tell("didSave", textDocument={"uri": uri})

    def actions(self, line, only=None, uri=URI):
        at = {"line": line, "character": 20}
        context = {"diagnostics": [], **({"only": only} if only else {})}
        where = {"textDocument": {"uri": uri}, "range": {"start": at, "end": at}}
        return self.ask("textDocument/codeAction", **where, context=context)

    def _send(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self):
        length = 0
        while (line := self._process.stdout.readline()) != b"\r\n":
            if not line:
                raise AssertionError(self._process.stderr.read().decode())
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self._process.stdout.read(length))


def codes(found):
    return [each["code"] for each in found]


@pytest.fixture(scope="module")
def process():
    with Editor(select=["dl1", "DL2", "DL9"], ignore=["DL209"]) as made:
        yield made


@pytest.fixture
def editor(process):
    yield process
    process.tell("didClose", textDocument={"uri": URI})
    while process.wait_for("textDocument/publishDiagnostics") != {"uri": URI, "diagnostics": []}:
        pass


def changed(text, action, uri=URI):
    """Return the text after an action; nothing wide, which UTF-16 counts twice, is before it."""
    keys = [(end, key) for end in ("start", "end") for key in ("line", "character")]
    edits = [
        Edit(*(each["range"][end][key] + 1 for end, key in keys), each["newText"])
        for each in action["edit"]["changes"][uri]
    ]
    return Text(text).edited(edits).text


def test_diagnostics_and_actions(editor):
    """Positions are in UTF-16; actions are of the file as it is."""
    first, second = editor.open(SOURCE)
    assert first["range"] == {"start": {"line": 2, "character": 10}, "end": {"line": 2, "character": 24}}
    assert (first["code"], first["severity"], first["source"]) == ("DL101", 1, "distlint")
    assert first["codeDescription"]["href"].endswith("/rules/dl101.py")
    (related,) = first["relatedInformation"]
    assert related["message"].startswith("rank guard: ")
    assert (related["location"]["uri"], related["location"]["range"]["start"]["line"]) == (URI, 1)
    assert (second["code"], second["severity"], second["tags"]) == ("DL900", 2, [1])
    nowhere = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}
    assert editor.ask("textDocument/hover", **nowhere) is None
    fix, everything = editor.actions(3)
    assert (fix["title"], fix["kind"], fix["isPreferred"]) == ("distlint: fix DL900", "quickfix", True)
    assert everything["kind"] == "source.fixAll.distlint"
    assert changed(SOURCE, everything) == changed(SOURCE, fix) == SOURCE.replace(COMMENT, "")
    *_, ignore = editor.actions(2, ["quickfix"])
    assert codes(ignore["diagnostics"]) == ["DL101"]
    (edit,) = ignore["edit"]["changes"][URI]
    assert edit["newText"] == "  # distlint: ignore[DL101]"
    assert edit["range"]["start"] == {"line": 2, "character": 24}
    assert editor.actions(0, ["quickfix"]) == editor.actions(3, ["refactor"]) == []
    assert [each["kind"] for each in editor.actions(0, ["source.fixAll"])] == ["source.fixAll.distlint"]
    editor.change(2, "\n" + SOURCE)
    *_, ignore = editor.actions(3, ["quickfix"])
    assert ignore["edit"]["changes"][URI][0]["range"]["start"]["line"] == 3


def test_changes_are_checked_after_a_pause_and_on_save_and_what_cannot_be_parsed_is_told(editor):
    editor.open(SOURCE)
    editor.change(2, "x = (\n")
    editor.change(3, "x = 1\n")
    params = editor.wait_for("textDocument/publishDiagnostics")
    assert (params["version"], params["diagnostics"]) == (3, [])
    editor.change(4, SOURCE)
    editor.save()
    assert len(editor.diagnostics()) == 2
    for text in ("def f(:\n", "# coding: none-such\n", "x = " + "(" * 999):
        (found,) = editor.open(text)
        assert found["code"] == "DL000"
        assert "codeDescription" not in found
        assert editor.actions(0) == []
    assert editor.open("# coding: latin-1\nx = '\u00e9\u2192'\n", "untitled:Untitled-1") == []


def test_what_waits_for_devices_is_neither_shown_nor_in_the_way_of_a_fix(editor, tmp_path):
    uri = (write(tmp_path, setup_cfg="") / "m.py").as_uri()
    text = f"{WAITS}x = 1  # distlint: ignore[DL101]\n"
    assert codes(editor.open(text, uri)) == ["DL900"]
    fix, everything = editor.actions(6, uri=uri)
    assert changed(text, fix, uri) == changed(text, everything, uri) == f"{WAITS}x = 1\n"
    write(tmp_path, run_sh="torchrun m.py\n")  # the other files of the project count
    editor.save(uri)
    assert codes(editor.diagnostics()) == ["DL202", "DL900"]
    (fix_all,) = editor.actions(6, ["source.fixAll"], uri)
    assert "sync_dist=True" in changed(text, fix_all, uri)


def test_options_and_the_configuration(tmp_path, editor):
    for code, is_shown in ("DL005", False), ("DL209", False), ("DL101", True):
        (_, text), *_ = examples(RULES[code], "bad")
        assert (code in codes(editor.open(text))) is is_shown
    settings = '[tool.distlint]\nper-path-ignores = { "old/*" = ["DL1"] }\nextend-exclude = ["x"]\n'
    write(tmp_path, pyproject_toml=settings)
    for name, number in (("main.py", 1), ("old/main.py", 0), ("x/main.py", 0)):
        assert len(editor.open(HANG, (tmp_path / name).as_uri())) == number
    write(tmp_path, pyproject_toml="[tool.distlint]\nselct = []\n")
    editor.save((tmp_path / "main.py").as_uri())
    said = editor.wait_for("window/showMessage")
    assert said["type"] == 1
    assert "selct" in said["message"]
    code = "import sys; sys.modules['pygls'] = None; from distlint.cli import main; sys.exit(main(['server']))"
    done = python("-c", code)
    assert (done.returncode, "pip install pygls" in done.stderr) == (2, True)

"""The language server: findings while one types, fixes as code actions, pages on hover."""

from __future__ import annotations

import asyncio
import importlib
import tokenize
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec

from distlint import __version__
from distlint.check import check_source
from distlint.config import Config, ConfigError, find_config, read_config, without_retired
from distlint.discover import is_excluded
from distlint.facts import Facts
from distlint.finding import SYNTAX_ERROR, Finding, Related
from distlint.fix import Check, fix_source, would_help
from distlint.pages import markdown
from distlint.rules import RULES
from distlint.rules.base import Rule
from distlint.run import check_files
from distlint.source import Source
from distlint.suppress import UNUSED, ignore_edits
from distlint.text import Edit, Text

PAUSE = 0.3  # seconds without a key before a changed file is checked
FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.distlint"
_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
}


@dataclass(frozen=True)
class State:
    """What is known of an open file.

    Attributes:
        version: of the file in the editor.
        source: its bytes, as they would be saved.
        text: the same, decoded.
        findings: in it.
        check: its findings in another version, such as one with a fix.
        config: what is to be shown, and so may be fixed without looking.
    """

    version: int | None
    source: bytes
    text: Text
    findings: Sequence[Finding]
    check: Check
    config: Config


class Server:
    """Findings of all open files.

    Attributes:
        language_server: speaks the protocol.
    """

    def __init__(self) -> None:
        self.language_server = LanguageServer("distlint", __version__)
        self._select: tuple[str, ...] = ()
        self._ignore: tuple[str, ...] = ()
        self._states: dict[str, State] = {}
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._offer(types.INITIALIZE, self._initialize)
        self._offer(types.TEXT_DOCUMENT_DID_OPEN, self._opened)
        self._offer(types.TEXT_DOCUMENT_DID_SAVE, self._opened)
        self._offer(types.TEXT_DOCUMENT_DID_CHANGE, self._changed)
        self._offer(types.TEXT_DOCUMENT_DID_CLOSE, self._closed)
        self._offer(types.TEXT_DOCUMENT_HOVER, self._hover)
        options = types.CodeActionOptions(
            code_action_kinds=[types.CodeActionKind.QuickFix, FIX_ALL]
        )
        self._offer(types.TEXT_DOCUMENT_CODE_ACTION, self._code_actions, options)

    def _offer(
        self,
        name: str,
        method: Callable[[Any], Any],
        options: types.CodeActionOptions | None = None,
    ) -> None:
        # pygls writes attributes on what it is given, which a bound method cannot have.
        self.language_server.feature(name, options)(partial(method))

    def _initialize(self, params: types.InitializeParams) -> None:
        options = params.initialization_options
        self._select, self._ignore = _option(options, "select"), _option(options, "ignore")

    def _config(self, path: str) -> Config:
        """Of the nearest pyproject.toml, and what the editor has sent along."""
        file = find_config(Path(path).parent)
        config = Config() if file is None else read_config(file, RULES)
        if self._select:
            config = replace(config, select=self._select, extend_select=(), ignore=())
        return without_retired(replace(config, ignore=config.ignore + self._ignore), RULES)

    def _opened(
        self, params: types.DidOpenTextDocumentParams | types.DidSaveTextDocumentParams
    ) -> None:
        self._states.pop(
            params.text_document.uri, None
        )  # other files, or the configuration, may have changed
        self._publish(params.text_document.uri)

    def _changed(self, params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._stop_waiting(uri)
        self._waiting[uri] = asyncio.get_running_loop().call_later(PAUSE, self._publish, uri)

    def _closed(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._stop_waiting(uri)
        self._states.pop(uri, None)
        self.language_server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, [])
        )

    def _stop_waiting(self, uri: str) -> None:
        handle = self._waiting.pop(uri, None)
        if handle is not None:
            handle.cancel()

    def _publish(self, uri: str) -> None:
        self._stop_waiting(uri)
        try:
            state = self._state(uri)
        except ConfigError as error:
            self.language_server.window_show_message(
                types.ShowMessageParams(types.MessageType.Error, f"distlint: {error}")
            )
            return
        except Exception:  # noqa: BLE001 - an editor shows what a server logs, and goes on with the other files
            said = "distlint: internal error, please report it\n" + traceback.format_exc()
            self.language_server.window_log_message(
                types.LogMessageParams(types.MessageType.Error, said)
            )
            return
        shown = [self._diagnostic(uri, state, found) for found in state.findings]
        self.language_server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, shown, version=state.version)
        )

    def _state(self, uri: str) -> State:
        """The findings of the file as it is now."""
        document = self.language_server.workspace.get_text_document(uri)
        known = self._states.get(uri)
        if (
            known is not None
            and known.version == document.version
            and known.text.text == document.source
        ):
            return known
        source, path = _saved(document.source), document.path or uri
        config = self._config(path)
        codes = [code for code in config.codes(RULES) if config.reports(code, path)]
        checked = check_files([path], codes, config, sources={path: source})
        rules = [RULES[code] for code in codes]
        check = partial(_check, path=path, rules=rules, facts=checked.facts[path])
        findings = [] if is_excluded(Path(path), config) else checked.findings
        self._states[uri] = State(
            document.version, source, Text(document.source), findings, check, config
        )
        return self._states[uri]

    @property
    def _codec(self) -> PositionCodec:
        return self.language_server.workspace.position_codec

    def _range(
        self, state: State, line: int, column: int, end_line: int, end_column: int
    ) -> types.Range:
        start, end = (
            types.Position(line - 1, column - 1),
            types.Position(end_line - 1, end_column - 1),
        )
        return self._codec.range_to_client_units(state.text.lines, types.Range(start, end))

    def _place(self, state: State, found: Finding) -> types.Range:
        return self._range(state, found.line, found.column, found.end_line, found.end_column)

    def _diagnostic(self, uri: str, state: State, found: Finding) -> types.Diagnostic:
        return types.Diagnostic(
            range=self._place(state, found),
            message=found.message,
            severity=_SEVERITY[found.severity],
            code=found.code,
            code_description=_page_address(found.code),
            source="distlint",
            tags=[types.DiagnosticTag.Unnecessary] if found.code == UNUSED else None,
            related_information=[
                types.DiagnosticRelatedInformation(
                    self._location(uri, state, step)
                    if step.path == found.path
                    else _elsewhere(step),
                    f"{step.label}: {step.text}",
                )
                for step in found.trace
            ],
        )

    def _location(self, uri: str, state: State, step: Related) -> types.Location:
        return types.Location(
            uri, self._range(state, step.line, 1, step.line, 1 + len(_line(state, step.line)))
        )

    def _hover(self, params: types.HoverParams) -> types.Hover | None:
        state = self._state(params.text_document.uri)
        for found in state.findings:
            where = self._place(state, found)
            rule = RULES.get(found.code)
            if rule is not None and where.start <= params.position <= where.end:
                return types.Hover(
                    types.MarkupContent(types.MarkupKind.Markdown, markdown(rule)), where
                )
        return None

    def _code_actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        state = self._state(uri)
        only = params.context.only
        wanted = [str(getattr(kind, "value", kind)) for kind in only] if only else None
        actions: list[types.CodeAction] = []
        if wanted is None or any(
            types.CodeActionKind.QuickFix.value.startswith(kind) for kind in wanted
        ):
            for found in state.findings:
                where = self._place(state, found)
                if where.start <= params.range.end and params.range.start <= where.end:
                    actions += self._quick_fixes(uri, state, found)
        if wanted is None or any(FIX_ALL.startswith(kind) for kind in wanted):
            actions += self._fix_all(uri, state)
        return actions

    def _quick_fixes(self, uri: str, state: State, found: Finding) -> Iterator[types.CodeAction]:
        mine = [self._diagnostic(uri, state, found)]
        if found.fix is not None and would_help(state.source, state.findings, found, state.check):
            how = "" if found.fix.safe else " (unsafe: may change what the code does)"
            yield types.CodeAction(
                f"distlint: fix {found.code}{how}",
                types.CodeActionKind.QuickFix,
                mine,
                is_preferred=found.fix.safe,
                edit=self._workspace_edit(uri, state, found.fix.edits),
            )
        if found.code not in (SYNTAX_ERROR, UNUSED):
            yield types.CodeAction(
                f"distlint: ignore {found.code} here",
                types.CodeActionKind.QuickFix,
                mine,
                edit=self._workspace_edit(
                    uri, state, ignore_edits(Source(state.text, found.path, Facts()), found)
                ),
            )

    def _fix_all(self, uri: str, state: State) -> Iterator[types.CodeAction]:
        done = fix_source(state.source, state.check)
        if done.applied:
            whole = Edit(1, 1, len(state.text.lines) + 1, 1, Text.decode(done.source).text)
            edit = self._workspace_edit(uri, state, [whole])
            yield types.CodeAction("distlint: fix all that is safe to fix", FIX_ALL, edit=edit)

    def _workspace_edit(self, uri: str, state: State, edits: Sequence[Edit]) -> types.WorkspaceEdit:
        shown = [
            types.TextEdit(
                self._range(state, edit.line, edit.column, edit.end_line, edit.end_column),
                edit.text,
            )
            for edit in edits
        ]
        return types.WorkspaceEdit(changes={uri: shown})


def _check(source: bytes, path: str, rules: Sequence[type[Rule]], facts: Facts) -> list[Finding]:
    """Return what is shown of a file: nothing that waits to hear of several devices."""
    return [found for found in check_source(source, path, rules, facts) if not found.waits]


def serve() -> None:
    """Speak to an editor over standard input and output until it says goodbye."""
    Server().language_server.start_io()


def _option(options: Any, name: str) -> tuple[str, ...]:
    """A list of codes from what the editor has sent along, an object or a dictionary."""
    given = options.get(name) if isinstance(options, dict) else getattr(options, name, None)
    return tuple(str(code).upper() for code in given or ())


def _saved(text: str) -> bytes:
    """A text as the editor would save it, by its coding line."""
    source = text.encode("utf-8", "replace")
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
    except SyntaxError:
        return source  # which is what the finding will say
    return text.removeprefix("\ufeff").encode(encoding, "replace")


def _line(state: State, line: int) -> str:
    return state.text.lines[line - 1] if line <= len(state.text.lines) else ""


def _elsewhere(step: Related) -> types.Location:
    """A line of another file, whose text the editor has."""
    start, end = types.Position(step.line - 1, 0), types.Position(step.line, 0)
    return types.Location(Path(step.path).resolve().as_uri(), types.Range(start, end))


def _page_address(code: str) -> types.CodeDescription | None:
    """The rule's file, whose documentation is its page."""
    if code not in RULES:
        return None
    file = importlib.import_module(RULES[code].__module__).__file__
    return None if file is None else types.CodeDescription(Path(file).as_uri())

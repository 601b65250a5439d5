"""Lines of a notebook that are IPython's and not Python's, put out of sight and back."""

from __future__ import annotations

import builtins
import io
import keyword
import re
import tokenize

from distlint.syntax import error_of

# Their body is Python; that of all others, such as %%bash and %%html, is not.
_PYTHON_CELLS = frozenset({"capture", "debug", "memit", "mprun", "lprun", "prun", "time", "timeit"})
_LINE = re.compile(r"\s*(?:[%!?]|%?[\w.*\[\]'\"]+\?{1,2}\s*(?:#.*)?$)")
# A command without a mark, which IPython takes for some and shells for all: words follow each
# other as in no Python.
_COMMAND = re.compile(
    r"""\s*(?:[A-Z_]+=[^\s()\[\]{},]*\s+)*
    (?:(?P<name>[\w.~/-]+)\s+(?P<next>\w+|[./~$'"]|-{1,2}\w|\*\.)|[.~]*/[\w./-]+\s*$)""",
    re.VERBOSE,
)
_ASSIGNED = re.compile(r"(?P<target>\s*[\w.,\s\[\]'\"*()]+?)\s*=\s*[%!]")
_HIDDEN = re.compile(r"# %% distlint-magic (\d+)$")


class Magics:
    """Hides IPython's lines of all cells of a notebook behind others, one for one."""

    def __init__(self) -> None:
        self._hidden: list[tuple[str, str]] = []
        self._before = 0  # the last cell

    def hide(self, cell: str) -> str:
        """The cell as Python that does nothing where IPython would."""
        self._before = len(self._hidden)
        if error_of(cell) is None:
            return cell
        lines = cell.split("\n")
        first = next((line for line in lines if line.strip()), "")
        if first.startswith("%%"):
            inside = re.match(r"%%(\w+)", first)
            if inside is None or inside[1] not in _PYTHON_CELLS:
                return self.hide_all(cell)
            at = lines.index(first)
            lines[at] = self._as_comment(first)
        return "\n".join(self._hide_lines(lines))

    def hide_all(self, cell: str) -> str:
        """The cell that was hidden last as nothing but comments, for what is not Python."""
        del self._hidden[self._before :]
        return "\n".join(self._as_comment(line) for line in cell.split("\n"))

    def _hide_lines(self, lines: list[str]) -> list[str]:
        done: list[str] = []
        goes_on = False
        for line in lines:
            if goes_on:
                goes_on = line.rstrip().endswith("\\")
                done.append(self._as_comment(line))
                continue
            assigned = _ASSIGNED.match(line)
            if not (assigned or _LINE.match(line) or _is_command(line)) or not _is_complete(done):
                done.append(line)
                continue
            goes_on = line.rstrip().endswith("\\")
            indentation = line[: len(line) - len(line.lstrip())]
            statement = f"{assigned['target']} = None" if assigned else f"{indentation}pass"
            done.append(self._remember(line, statement + "  "))
        return done

    def _as_comment(self, line: str) -> str:
        return self._remember(line, "")

    def _remember(self, line: str, statement: str) -> str:
        shown = f"{statement}# %% distlint-magic {len(self._hidden)}"
        self._hidden.append((shown, line))
        return shown

    def restore(self, source: str) -> str:
        """The source with IPython's lines where their stand-ins are.

        Raises:
            ValueError: a stand-in was changed or is gone.
        """
        lines = source.split("\n")
        seen = []
        for at, line in enumerate(lines):
            found = _HIDDEN.search(line)
            if found is not None:
                number = int(found[1])
                seen.append(number)
                if number >= len(self._hidden) or self._hidden[number][0] != line:
                    raise ValueError(f"a line of IPython was changed: {line.strip()}")
                lines[at] = self._hidden[number][1]
        if seen != list(range(len(self._hidden))):
            raise ValueError("a line of IPython is gone")
        return "\n".join(lines)


def _is_command(line: str) -> bool:
    """Whether a line is no Python, and begins as commands do: with no word of Python."""
    found = _COMMAND.match(line)
    if found is None or error_of(line.strip()) is None:
        return False
    name, word = found["name"] or "", found["next"] or ""
    return not (
        keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name)
    ) and not (keyword.iskeyword(word))


def _is_complete(lines: list[str]) -> bool:
    """Whether a statement can start after these lines: nothing is open, nor goes on."""
    if lines and lines[-1].rstrip().endswith("\\"):
        return False
    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join([*lines, ""])).readline):
            pass
    except tokenize.TokenError as error:
        return "EOF" not in str(error) and "unterminated triple" not in str(error)
    except IndentationError:
        return True
    return True

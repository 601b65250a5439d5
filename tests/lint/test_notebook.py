"""Notebooks: what is found in cells, and what fixes write back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.cli import main
from distlint.document import check_document, fix_document, ignore_document
from distlint.magics import Magics
from distlint.model import Finding
from distlint.notebook import Notebook, NotebookError
from distlint.rules import RULES
from tests.lint.test_fix import Called, beside, put

ALL = list(RULES.values())
IMPORT = "import torch.distributed as dist"
GUARDED = "if dist.get_rank() == 0:\n    dist.barrier()"


def notebook(*cells: str | dict[str, Any], **metadata: Any) -> bytes:
    made = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": cell.splitlines(True)}
        if isinstance(cell, str)
        else cell
        for cell in cells
    ]
    return (json.dumps({"cells": made, "metadata": metadata, "nbformat": 4}, indent=1) + "\n").encode()


def places(findings: list[Finding]) -> list[tuple[str, int | None, int, int]]:
    return [(found.code, found.cell, found.line, found.column) for found in findings]


def check(source: bytes) -> list[tuple[str, int | None, int, int]]:
    return places(check_document(source, "a.ipynb", ALL))


def text_cell(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def test_cells_are_one_module_and_findings_are_told_by_cell() -> None:
    source = notebook(
        text_cell("if rank == 0:"), IMPORT, "rank = dist.get_rank()", "x = 1\nif rank == 0:\n\tdist.barrier()"
    )
    (found,) = check_document(source, "a.ipynb", ALL)
    assert (found.cell, found.line, found.column, found.end_line, found.statement) == (4, 3, 2, 3, (3, 3))
    assert found.place == "a.ipynb:cell 4"
    assert [(step.cell, step.line) for step in found.trace] == [(4, 2)]


@pytest.mark.parametrize(
    "cell",
    [
        f"%matplotlib inline\n{GUARDED}",
        f"!pip install torch \\\n  --quiet\n{GUARDED}",
        f"%%time\n{GUARDED}",
        f"pip install torch\nls ./data\ncd ..\n{GUARDED}",
        f"config Completer.use_jedi = False\nload_ext autoreload\nautoreload 2\nmatplotlib inline\n{GUARDED}",
        f"files = !ls *.py\n{GUARDED}",
        f"start = %time\n{GUARDED}",
        f"dist.barrier?\n?dist\ndist??\n{GUARDED}",
        f"if x:\n    %cd ..\n    !ls\n{GUARDED}",
        f'text = """\n%d of\n! {{0}}\n"""\n%cd ..\n{GUARDED}',
        f"x = (1\n  % 2\n)\n!ls\n{GUARDED}",
        f"x = 1 \\\n  % 2\n!ls\n{GUARDED}",
    ],
)
def test_ipythons_lines_are_passed_over(cell: str) -> None:
    line = cell.count("\n") + 1
    assert check(notebook(IMPORT, cell)) == [("DL101", 2, line, 5)]


def test_cells_of_other_languages_are_passed_over() -> None:
    assert check(notebook(IMPORT, f"%%bash\n{GUARDED}", "%%html\n<b>", "%%\n?")) == []
    source = notebook(IMPORT, GUARDED, kernelspec={"language": "R"})
    assert check(source) == []
    assert check(notebook(IMPORT, GUARDED, kernelspec={"language": "python"}, language_info={"name": "ipython"})) != []


@pytest.mark.parametrize(
    "command",
    [
        "pip install -q x==1.2 && ls",
        "cd x",
        "git clone https://example.com/x",
        "CUDA_VISIBLE_DEVICES=0 python train.py --lr 1",
        "./run.sh",
        "torchrun --nproc_per_node=2 train.py \\\n  --lr 1",
        "echo 'x' > a.txt",
        "rm *.txt",
        "export A=1",
    ],
)
def test_commands_without_a_mark_are_passed_over(command: str) -> None:
    python = f"x -= f(\n    1)\nx = (y\n    if x else 2)\n{GUARDED}"
    assert [code for code, *_ in check(notebook(IMPORT, command, f"{python}\n{command}"))] == ["DL101"]


@pytest.mark.parametrize("cell", ["print 'a'", "exec code", "for i in range(3)\n    f(i)", "return x y", "x = = y"])
def test_broken_python_is_no_command(cell: str) -> None:
    assert [code for code, *_ in check(notebook(cell))] == ["DL000"]


def test_a_broken_cell_is_a_finding_and_the_others_are_checked() -> None:
    assert check(notebook(IMPORT, "x = 1\ndef f(:", GUARDED)) == [("DL000", 2, 2, 7), ("DL101", 3, 2, 5)]


def test_a_cell_that_is_indented_as_a_whole_is_passed_over() -> None:
    found = check(notebook("    x = 1\n    !ls", "  x = 1\ny = 2"))
    assert [(code, cell, line) for code, cell, line, _ in found] == [("DL000", 2, 1)]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"", 1),
        (b"{\n 'cells': []}", 2),
        (b"[]", 1),
        (b'{"worksheets": []}', 1),
        (b'{"cells": {}}', 1),
        (b'{"cells": [],\n"x": "\xff"}', 2),
        (b"[" * 100_000, 1),
    ],
)
def test_what_is_no_notebook_is_a_finding(source: bytes, line: int) -> None:
    (found,) = check_document(source, "a.ipynb", ALL)
    assert (found.code, found.cell, found.line) == ("DL000", None, line)
    assert fix_document(source, "a.ipynb", ALL).source == source


@pytest.mark.parametrize(
    "source", [notebook(), notebook(""), notebook("", ""), notebook({"cell_type": "raw"}), notebook({})]
)
def test_empty_notebooks(source: bytes) -> None:
    assert check(source) == []
    assert fix_document(source, "a.ipynb", ALL).source == source


def fixed(source: bytes, repair: Any) -> tuple[bytes, list[str]]:
    done = fix_document(source, "a.ipynb", [Called(repair)])
    cells = json.loads(done.source.decode("utf-8-sig"))["cells"]
    return done.source, ["".join(cell["source"]) for cell in cells]


def test_fixes_are_written_into_their_cells() -> None:
    source = notebook(text_cell("bad()"), "!ls\nx = bad(1)", "%%bash\nbad()", "bad(2)  # é")
    assert fixed(source, put("good()"))[1] == ["bad()", "!ls\nx = good()", "%%bash\nbad()", "good()  # é"]
    assert fixed(source, beside("new()", "before"))[1][1:] == [
        "!ls\nnew()\nx = good(1)",
        "%%bash\nbad()",
        "new()\ngood(2)  # é",
    ]
    assert fixed(source, beside("new()", "after"))[1][1:] == [
        "!ls\nx = good(1)\nnew()",
        "%%bash\nbad()",
        "good(2)  # é\nnew()",
    ]


@pytest.mark.parametrize("layout", [{"indent": 1}, {"indent": 4}, {"indent": "\t"}, {}, {"separators": (",", ":")}])
@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_everything_else_keeps_its_bytes(layout: dict[str, Any], is_ascii: bool, as_text: bool, mark: bytes) -> None:
    def lay_out(cell: str) -> bytes:
        source = cell if as_text else cell.splitlines(True)
        cells = [{"cell_type": "code", "source": source, "outputs": [1.0e-5, "\u00e9"]}, {"source": "z", "a": [[], {}]}]
        text = json.dumps({"z": 1, "cells": cells, "metadata": {"a": "1E5"}}, ensure_ascii=is_ascii, **layout)
        return mark + text.replace("1e-05", "1.0E-05").encode()

    cell = "x = '\u00e9'\nbad(1)\n!ls"
    assert fixed(lay_out(cell), put("good()"))[0] == lay_out(cell.replace("bad(1)", "good()"))
    assert fixed(lay_out("x"), put("good()"))[0] == lay_out("x")


def test_a_fix_that_reaches_into_a_line_of_ipython_is_not_written() -> None:
    source = notebook("bad(); x = 1\nif x:\n    !ls")

    def repair(facts: Any, _call: Any) -> Any:
        from distlint.model import Change, Repair

        return Repair(True, (Change(facts.module.body[1], "pass"), Change(facts.module.body[0], "pass")))

    done = fix_document(source, "a.ipynb", [Called(repair)])
    assert done.source == source
    assert len(done.undone) == len(done.findings) == 1


def test_edits_are_told_by_cell() -> None:
    (first, second) = check_document(notebook("x", "bad(1)", "bad(2)"), "a.ipynb", [Called(beside("new()", "after"))])
    assert first.fix is not None
    assert [(edit.cell, edit.line, edit.column, edit.text) for edit in first.fix.edits] == [
        (2, 1, 1, "good"),
        (2, 1, 7, "\nnew()"),
    ]
    assert second.fix is not None
    assert second.fix.edits[0].cell == 3


def test_comments_are_added_in_cells() -> None:
    source = notebook(IMPORT, "!ls\n" + GUARDED)
    found = check_document(source, "a.ipynb", ALL)
    done = ignore_document(source, "a.ipynb", ALL, found)
    assert json.loads(done.source)["cells"][1]["source"][-1] == "    dist.barrier()  # distlint: ignore[DL101]"
    assert done.findings == []


CELLS = st.sampled_from(
    [
        "x = 1",
        "!ls",
        "%%bash\nls",
        "bad()",
        "if x:\n  bad()\n",
        "def f(:",
        "!ls\n%cd\ndef f(:",
        "'é \u2028'; bad()",
        "x?\n\n",
        "",
    ]
)


@settings(deadline=None)
@given(st.lists(CELLS, max_size=5))
def test_any_notebook_comes_back(cells: list[str]) -> None:
    read = Notebook(notebook(*cells))
    assert read.written(read.python) == notebook(*cells)
    after = fixed(notebook(*cells), put("good()"))[1]
    assert after == [cell if "def" in cell else cell.replace("bad()", "good()") for cell in cells]


def test_a_cell_or_line_that_is_gone_is_noticed() -> None:
    read = Notebook(notebook("x", "!ls"))
    for gone in ("# %% distlint-cell 1", "# %% distlint-magic 0"):
        with pytest.raises(ValueError, match=r"gone|changed"):
            read.written(read.python.replace(gone.encode(), b"#"))


def test_magics_keep_the_number_of_lines() -> None:
    cell = "%%capture\n\nx = !ls \\\n  -a\nif x:\n\t!ls\n"
    magics = Magics()
    hidden = magics.hide(cell)
    assert hidden.count("\n") == cell.count("\n")
    compile(hidden, "cell", "exec")
    assert magics.restore(hidden) == cell


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.ipynb"
    path.write_bytes(notebook(IMPORT, GUARDED))
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{path}:cell 2:2:5 DL101")
    assert "  1 | if dist.get_rank() == 0:\n  2 |     dist.barrier()\n" in out


def test_no_notebook_has_a_place() -> None:
    with pytest.raises(NotebookError) as caught:
        Notebook(b'{"a":\n 1,}')
    assert (caught.value.line, caught.value.column) == (2, 4)


def test_a_pointer_of_git_lfs_is_named() -> None:
    (found,) = check_document(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a.ipynb", ALL)
    assert "git lfs pull" in found.message


MODEL = """\
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))
"""


@pytest.mark.parametrize(
    ("cell", "confidence"),
    [
        ("trainer = pl.Trainer(devices=2)", "sure"),
        ("make_trainer().fit(Model())", "review"),
    ],
)
def test_trainers_in_the_cells_of_a_notebook(cell: str, confidence: str) -> None:
    (found,) = check_document(notebook(MODEL, cell), "a.ipynb", ALL)
    assert (found.code, found.confidence) == ("DL202", confidence)


def test_samplers_of_a_notebook_that_starts_nothing() -> None:
    made = "from torch.utils.data import DistributedSampler\nval_sampler = DistributedSampler(val_set)"
    assert [each.confidence for each in check_document(notebook(made), "a.ipynb", ALL)] == ["review"]

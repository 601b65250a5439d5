"""Notebooks: what is found in cells, and what fixes write back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.document import check_document, fix_document, ignore_document
from distlint.edits import Change
from distlint.facts import Facts
from distlint.magics import Magics
from distlint.notebook import Notebook, NotebookError
from tests.lint.helpers import ALL, RELAXED, WAITS, beside, called, found, put, write

IMPORT = "import torch.distributed as dist"
GUARDED = "if dist.get_rank() == 0:\n    dist.barrier()"
NOWHERE = Facts()


def notebook(*cells, **metadata):
    empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    made = [{**empty, "source": cell.splitlines(True)} if isinstance(cell, str) else cell for cell in cells]
    content = {"cells": made, "metadata": metadata, "nbformat": 4}
    return (json.dumps(content, indent=1) + "\n").encode()


def check(source):
    findings = check_document(source, "a.ipynb", ALL, NOWHERE)
    return [(found.code, found.cell, found.line, found.column) for found in findings]


def fix(source, rules=ALL):
    return fix_document(source, "a.ipynb", rules, NOWHERE, unsafe=False, is_wanted=bool)


def text_cell(text):
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def test_cells_are_one_module_and_findings_are_told_by_cell():
    source = notebook(
        text_cell("if rank == 0:"), IMPORT, "rank = dist.get_rank()", "x = 1\nif rank == 0:\n\tdist.barrier()"
    )
    (found,) = check_document(source, "a.ipynb", ALL, NOWHERE)
    assert (found.cell, found.line, found.column, found.end_line) == (4, 3, 2, 3)
    assert (found.statement, found.place) == ((3, 3), "a.ipynb:cell 4")
    assert [(step.cell, step.line) for step in found.trace] == [(4, 2)]


MAGICS = [
    "!pip install torch \\\n  --quiet",
    "%%time",
    "pip install torch\nls ./data\ncd ..\nmatplotlib inline",
    "files = !ls *.py",
    "start = %time",
    "dist.barrier?\n?dist\ndist??",
    "if x:\n    %cd ..\n    !ls",
    'text = """\n%d of\n! {{0}}\n"""\n%cd ..',
    "x = (1\n  % 2\n)\n!ls",
    "x = 1 \\\n  % 2\n!ls",
    "pip install -q x==1.2 && ls",
    "git clone https://example.com/x",
    "CUDA_VISIBLE_DEVICES=0 python train.py --lr 1",
    "./run.sh",
    "torchrun --nproc_per_node=2 train.py \\\n  --lr 1",
    "echo 'x' > a.txt\nrm *.txt\nexport A=1",
]


@pytest.mark.parametrize("cell", MAGICS)
def test_ipythons_lines_are_passed_over(cell):
    source = notebook(IMPORT, f"{cell}\n{GUARDED}", cell)
    assert check(source) == [("DL101", 2, cell.count("\n") + 3, 5)]
    magics = Magics()
    hidden = magics.hide(cell)
    assert hidden.count("\n") == cell.count("\n")
    assert magics.restore(hidden) == cell


BROKEN = ["print 'a'", "exec code", "for i in range(3)\n    f(i)", "return x y", "x = = y", "f" * 9]


@pytest.mark.parametrize("cell", [*BROKEN, "x = " + "(" * 300 + ")" * 300])
def test_broken_python_is_no_command_and_the_other_cells_are_checked(cell):
    codes = [(code, number) for code, number, *_ in check(notebook(IMPORT, cell, GUARDED, "    x = 1\n    !ls"))]
    assert codes == [("DL000", 2), ("DL101", 3)][cell == "f" * 9 :]


def test_cells_of_other_languages_are_passed_over():
    assert check(notebook(IMPORT, f"%%bash\n{GUARDED}", "%%html\n<b>", "%%\n?")) == []
    assert check(notebook(IMPORT, GUARDED, kernelspec={"language": "R"})) == []
    python = {"kernelspec": {"language": "python"}, "language_info": {"name": "ipython"}}
    assert check(notebook(IMPORT, GUARDED, **python)) != []


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
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", 1),
        (notebook(), None),
        (notebook("", ""), None),
        (notebook({"cell_type": "raw"}, {}), None),
    ],
)
def test_what_is_no_notebook_is_a_finding_and_an_empty_one_is_not(source, line):
    findings = check_document(source, "a.ipynb", ALL, NOWHERE)
    assert [(each.code, each.cell, each.line) for each in findings] == ([] if line is None else [("DL000", None, line)])
    assert ("git lfs pull" in str(findings)) is source.startswith(b"version")
    assert fix(source).source == source
    assert ignore_document(source, "a.ipynb", ALL, NOWHERE, findings).source == source


def fixed(source, repair):
    done = fix(source, [called(repair)])
    cells = json.loads(done.source.decode("utf-8-sig"))["cells"]
    return done.source, ["".join(cell["source"]) for cell in cells]


@pytest.mark.parametrize(
    ("repair", "first", "last"),
    [
        (put("good()"), "!ls\nx = good()", "good()  # é"),
        (beside("new()", "before"), "!ls\nnew()\nx = good(1)", "new()\ngood(2)  # é"),
        (beside("new()", "after"), "!ls\nx = good(1)\nnew()", "good(2)  # é\nnew()"),
    ],
)
def test_fixes_are_told_by_cell_and_written_there(repair, first, last):
    source = notebook(text_cell("bad()"), "!ls\nx = bad(1)", "%%bash\nbad()", "bad(2)  # é")
    findings = check_document(source, "a.ipynb", [called(repair)], NOWHERE)
    assert [{edit.cell for edit in found.fix.edits} for found in findings] == [{2}, {4}]
    assert {edit.line for edit in findings[0].fix.edits} == {2}
    assert fixed(source, repair)[1] == ["bad()", first, "%%bash\nbad()", last]


LAYOUTS = [{"indent": 1}, {"indent": 4}, {"indent": "\t"}, {}, {"separators": (",", ":")}]


@RELAXED
@given(st.sampled_from(LAYOUTS), st.booleans(), st.booleans(), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_everything_else_keeps_its_bytes(layout, is_ascii, as_text, mark):
    def lay_out(cell):
        source = cell if as_text else cell.splitlines(True)
        code = {"cell_type": "code", "source": source, "outputs": [1.0e-5, "\u00e9"]}
        cells = [code, {"source": "z", "a": [[], {}]}]
        content = {"z": 1, "cells": cells, "metadata": {"a": "1E5"}}
        text = json.dumps(content, ensure_ascii=is_ascii, **layout)
        return mark + text.replace("1e-05", "1.0E-05").encode()

    cell = "x = '\u00e9'\nbad(1)\n!ls"
    assert fixed(lay_out(cell), put("good()"))[0] == lay_out(cell.replace("bad(1)", "good()"))
    assert fixed(lay_out("x"), put("good()"))[0] == lay_out("x")


CELLS = ["x = 1", "!ls", "%%bash\nls", "bad()", "if x:\n  bad()\n", "def f(:", "x?\n\n", ""]
CELLS += ["!ls\n%cd\ndef f(:", "'é \u2028'; bad()", "type X = int\nbad()"]


@RELAXED
@given(st.lists(st.sampled_from(CELLS), max_size=5))
def test_any_notebook_comes_back(cells):
    read = Notebook(notebook(*cells))
    assert read.written(read.python) == notebook(*cells)
    after = fixed(notebook(*cells), put("good()"))[1]
    assert after == [cell if "def" in cell else cell.replace("bad()", "good()") for cell in cells]


def test_a_fix_that_would_lose_a_line_of_ipython_or_a_cell_is_not_written():
    def repair(source, _call):
        first, second = source.module.body[:2]
        return [Change(second, "pass"), Change(first, "pass")]

    source = notebook("bad(); x = 1\nif x:\n    !ls")
    done = fix(source, [called(repair)])
    assert done.source == source
    assert len(done.undone) == len(done.findings) == 1
    read = Notebook(notebook("x", "!ls"))
    for gone in ("# %% distlint-cell 1", "# %% distlint-magic 0"):
        with pytest.raises(ValueError, match=r"gone|changed"):
            read.written(read.python.replace(gone.encode(), b"#"))
    with pytest.raises(NotebookError) as caught:
        Notebook(b'{"a":\n 1,}')
    assert (caught.value.line, caught.value.column) == (2, 4)


def test_trainers_in_the_cells_of_a_notebook(tmp_path, capsys):
    large = {"cell_type": "code", "source": "1", "outputs": ["image" * 400_000]}
    for cell in ("trainer = pl.Trainer(devices=2)", "x = 'y' * 1_100_000"):
        write(tmp_path, a_ipynb=notebook(WAITS, cell, large))
        assert [code for _, code in found(capsys, tmp_path)] == ["DL202"] * ("Trainer" in cell)

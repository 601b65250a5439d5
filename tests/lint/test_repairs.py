"""Repairs of the rules on divergence: what they make of a file, and that they bring nothing new."""

from __future__ import annotations

import ast
import textwrap

import pytest

from distlint.engine import check_source
from distlint.model import Edit, Finding
from distlint.rules import RULES

DIVERGENCE = [rule for rule in RULES.values() if rule.group == "divergence"]
EXAMPLES = [
    pytest.param(rule.code, each.source, id=f"{rule.code}-{n}")
    for rule in DIVERGENCE
    for n, each in enumerate(rule.bad)
]


def find(source: str, *codes: str) -> list[Finding]:
    """Findings of some rules, or of all."""
    return check_source(source.encode(), "model.py", [RULES[code] for code in codes or RULES])


def apply(source: str, edits: tuple[Edit, ...]) -> str:
    """The source with the edits made, from the last to the first."""
    rows = source.splitlines(keepends=True)
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    for edit in sorted(edits, key=lambda edit: (edit.line, edit.column), reverse=True):
        first, last = starts[edit.line - 1] + edit.column - 1, starts[edit.end_line - 1] + edit.end_column - 1
        source = source[:first] + edit.text + source[last:]
    return source


def repaired(source: str, *codes: str, unsafe: bool = False) -> str:
    """The source after every repair, one at a time, until there is none."""
    for _ in range(50):
        fixes = [found.fix for found in find(source, *codes) if found.fix is not None]
        wanted = [fix for fix in fixes if fix.safe or unsafe]
        if not wanted:
            return source
        source = apply(source, wanted[0].edits)
        ast.parse(source)
    raise AssertionError(f"repairs go on for ever:\n{source}")


@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
@pytest.mark.parametrize(("code", "source"), EXAMPLES)
def test_a_repair_removes_its_finding_and_brings_no_other(code: str, source: str, unsafe: bool) -> None:
    before = {found.code for found in find(source)}
    done = repaired(source, code, unsafe=unsafe)
    left = [found for found in find(done, code) if found.fix is not None and (found.fix.safe or unsafe)]
    assert left == []
    assert {found.code for found in find(done)} <= before
    assert len(find(done)) <= len(find(source))


@pytest.mark.parametrize(
    ("code", "source", "expected"),
    [
        (
            "DL101",
            """\
            class Model(LightningModule):
                def on_validation_epoch_end(self):
                    # once an epoch
                    if self.trainer.is_global_zero:  # rank 0
                        scores = self.all_gather(
                            self.scores,
                        )
                        self.log("score", scores.mean(), rank_zero_only=True)
            """,
            """\
            class Model(LightningModule):
                def on_validation_epoch_end(self):
                    # once an epoch
                    gathered = self.all_gather(
                        self.scores,
                    )
                    if self.trainer.is_global_zero:  # rank 0
                        scores = gathered
                        self.log("score", scores.mean(), rank_zero_only=True)
            """,
        ),
        (
            "DL101",
            """\
            def f(accelerator, model, gathered):
                if accelerator.is_main_process:
                    report(accelerator.gather(gathered), accelerator.gather_for_metrics(model))
            """,
            """\
            def f(accelerator, model, gathered):
                gathered_2 = accelerator.gather(gathered)
                gathered_3 = accelerator.gather_for_metrics(model)
                if accelerator.is_main_process:
                    report(gathered_2, gathered_3)
            """,
        ),
        (
            "DL101",
            """\
            def f(accelerator):
                if accelerator.is_main_process:
                    accelerator.wait_for_everyone()
                    print("saved")
                if accelerator.is_main_process:
                    accelerator.wait_for_everyone()
            """,
            """\
            def f(accelerator):
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    print("saved")
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    pass
            """,
        ),
        (
            "DL102",
            """\
            class Model(LightningModule):
                def on_validation_epoch_end(self):
                    if self.trainer.is_global_zero:
                        self.log("a", self.a, sync_dist=True)
                        self.log("b", (self.b), rank_zero_only=False, sync_dist=True)
                        self.log_dict(
                            {"c": self.c},  # the rest
                        )
            """,
            """\
            class Model(LightningModule):
                def on_validation_epoch_end(self):
                    if self.trainer.is_global_zero:
                        self.log("a", self.a, rank_zero_only=True)
                        self.log("b", (self.b), rank_zero_only=True, sync_dist=False)
                        self.log_dict(
                            {"c": self.c}, rank_zero_only=True,  # the rest
                        )
            """,
        ),
        (
            "DL105",
            """\
            def f(metrics, names):
                for n, name in enumerate(
                    {"loss", "accuracy"}
                ):
                    dist.all_reduce(metrics[name])
            """,
            """\
            def f(metrics, names):
                for n, name in enumerate(
                    sorted({"loss", "accuracy"})
                ):
                    dist.all_reduce(metrics[name])
            """,
        ),
    ],
)
def test_what_a_safe_repair_makes(code: str, source: str, expected: str) -> None:
    assert repaired(textwrap.dedent(source), code) == textwrap.dedent(expected)


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0 and step % 10 == 0:\n        x = accelerator.gather(x)",
        "if rank == 0:\n        y = read()\n        x = accelerator.gather(x)",
        "if rank == 0:\n        x = accelerator.gather(read())",
        "if rank == 0:\n        print(read(), accelerator.gather(x))",
        "if rank == 0:\n        y = x\n        x = accelerator.gather(y)",
        "if rank == 0:\n        x = accelerator.gather(x) if step else x",
        "if step:\n        pass\n    elif rank == 0:\n        x = accelerator.gather(x)",
        "if rank != 0:\n        x = accelerator.gather(x)",
        "if local_rank == 0:\n        if rank == 0:\n            x = accelerator.gather(x)",
        "if rank == 0:\n        with lock:\n            x = accelerator.gather(x)",
        "if rank == 0:\n        x = helper(accelerator, x)",
        "if rank > 0:\n        return\n    x = accelerator.gather(x)",
        "if rank == 0:\n        dist.barrier()",
        "if rank == 0:\n        dist.all_reduce(x)",
        "if rank == 0:\n        accelerator.save_state('here')",
    ],
)
def test_a_hoist_that_may_change_something_else_is_not_safe(body: str) -> None:
    source = (
        "def helper(accelerator, x):\n    return accelerator.gather(x)\n\n"
        f"def f(accelerator, rank, local_rank, step, x):\n    {body}\n    return x\n"
    )
    (found,) = find(source, "DL101")
    assert found.fix is None or not found.fix.safe


def test_what_writes_files_is_hoisted_only_when_asked_for() -> None:
    source = "def f(trainer, rank):\n    if rank == 0:\n        trainer.save_checkpoint('x.ckpt')\n"
    assert repaired(source, "DL101") == source
    done = "def f(trainer, rank):\n    trainer.save_checkpoint('x.ckpt')\n    if rank == 0:\n        pass\n"
    assert repaired(source, "DL101", unsafe=True) == done


@pytest.mark.parametrize(
    ("over", "safe"),
    [
        ('{"a", "b"}', True),
        ('{f"head_{n}" for n in range(3)}', True),
        ("os.listdir(path)", True),
        ("pathlib.Path(path).iterdir()", True),
        ("set(losses)", False),
        ("losses.keys() & other.keys()", False),
        ("os.scandir(path)", False),
    ],
)
def test_sorting_is_safe_where_it_cannot_fail(over: str, safe: bool) -> None:
    source = f"import os, pathlib\n\ndef f(losses, other, path):\n    for x in {over}:\n        dist.all_reduce(x)\n"
    (found,) = find(source, "DL105")
    assert found.fix is not None
    assert found.fix.safe is safe
    assert find(apply(source, found.fix.edits), "DL105") == []


HANDLER = """\
def f(x, load, parts):
    try:
        {tried}
    except {kind}:
        {handled}
    load(x)
"""


@pytest.mark.parametrize(
    ("tried", "kind", "handled", "expected"),
    [
        ("load(x)", "RuntimeError", "dist.barrier()", [5]),
        ("load(x)", "(OSError, ValueError)", "dist.barrier()", [5]),
        ("load(x)", "Exception as error", "dist.barrier(); raise", [5]),
        ("load(x)", "(ImportError, AttributeError)", "dist.barrier()", []),
        ("load(x)", "KeyboardInterrupt", "dist.barrier()", []),
        ("load(x)", "(ImportError, OSError)", "dist.barrier()", [5]),
        ("dist.all_gather(parts, x)", "RuntimeError", "dist.all_gather(parts, x.cpu())", []),
        ("dist.all_gather(parts, x)", "RuntimeError", "dist.barrier(); dist.all_gather(parts, x)", [5]),
        ("load(x)", "RuntimeError", "f(x, load, parts)", []),
        ("load(x)", "RuntimeError", "later = lambda: dist.barrier()", []),
    ],
)
def test_handlers(tried: str, kind: str, handled: str, expected: list[int]) -> None:
    source = HANDLER.format(tried=tried, kind=kind, handled=handled)
    assert [found.line for found in find(source, "DL106")] == expected

"""What every rule is made of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import ClassVar

import libcst as cst

from distlint.apis import EVALUATION, FUNCTIONS, end_of
from distlint.edits import Change, edits
from distlint.facts import Facts
from distlint.finding import Finding, Fix, Related
from distlint.source import Source

Tokens = tuple[tuple[bytes, ...], ...]
# What stands in the bytes of every file that tests the rank, or makes a collective.
RANK_TOKENS = (
    b"rank", b"RANK", b"PROCID", b"LOCALID", b"is_main", b"main_process", b"is_master", b"master_",
    b"is_global", b"is_root", b"is_chief", b"is_primary", b"is_zero", b"is_world", b"get_ordinal",
    b"process_index", b"proc_id", b"main_only", b"is_local", b"main_rank", b"is_first",
)  # fmt: skip
# The library that a collective comes from, or what its object is called.
COLLECTIVE_TOKENS = (
    *sorted({name.partition(".")[0].encode() for name in FUNCTIONS} - {b"torch"}),
    b"torch.distributed", b"import distributed", b"dist.", b"deepspeed", b"ccelerat", b"abric",
    b"PartialState", b"strategy", b"training_type_plugin", b"model_engine", b"ds_engine",
    b"save_checkpoint", b"all_gather", b"gather_for_metrics", b"wait_for_everyone",
    b"save_16bit_model", b"sync_dist", b".compute(",
)  # fmt: skip
# The import of a class of Lightning's, or what its modules are called in callbacks.
LIGHTNING_TOKENS = (b"ightning", b"pl_module")
# What a compound statement is shown by, so that not all of its body is marked.
_HEADS = {
    cst.If: "test", cst.While: "test", cst.For: "iter", cst.FunctionDef: "name",
    cst.ClassDef: "name", cst.ExceptHandler: "type",
}  # fmt: skip


class Rule:
    """One code. The docstring of a rule is its page, its folder of examples is its test.

    Attributes:
        name: stable, in words; the code is the name of the class.
        shown: the examples on the page, by the names of their files: the first pair opens it.
        severity: ``"error"`` where a job hangs, fails or reports a wrong number; or ``"warning"``.
        tokens: a file can matter if it has at least one token of *each* group.
        several_devices: whether a finding is one only where several devices run the project.
        in_lightning: whether findings are in classes of Lightning alone.

    Args:
        source: the file.
    """

    name: ClassVar[str]
    shown: ClassVar[tuple[str, ...]] = ()
    severity: ClassVar[str] = "error"
    tokens: ClassVar[Tokens] = ()
    several_devices: ClassVar[bool] = False
    in_lightning: ClassVar[bool] = False

    def __init__(self, source: Source) -> None:
        self.source = source
        self.facts = source.facts
        self.findings: list[Finding] = []

    def check(self) -> None:
        """Report everything that is to be said of the file."""
        raise NotImplementedError

    def report(
        self,
        node: cst.CSTNode,
        message: str,
        *changes: Change,
        safe: bool = True,
        about: Sequence[tuple[cst.CSTNode, str, str]] = (),
        several_devices: bool | None = None,
    ) -> None:
        """Report a place.

        Args:
            node: the place.
            message: one sentence of at most 120 characters, the remedy in it.
            changes: what would mend it, all together.
            safe: whether they cannot change what right code does.
            about: further places: node, what it is to the finding, and what is to be seen there.
            several_devices: whether this one finding needs several devices; as the rule if None.
        """
        source = self.source
        waits = self.several_devices if several_devices is None else several_devices
        here = source.position(node)
        end = here.end
        head = getattr(node, _HEADS.get(type(node), ""), None)
        if type(node) in _HEADS:
            end = source.position(head).end if head is not None else here.start
        made = edits(source, changes) if changes else ()
        trace = tuple(Related(source.path, source.line(n), label, text) for n, label, text in about)
        self.findings.append(
            Finding(
                self.code(),
                self.name,
                message,
                source.path,
                here.start.line,
                here.start.column + 1,
                end.line,
                end.column + 1,
                self.severity,
                Fix(safe, made) if made else None,
                trace,
                statement=self._statement(node),
                waits=waits and self.facts.devices != "many",
            )
        )

    def _statement(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the lines on which a comment silences a finding."""
        statement = self.source.statement(node)
        here = self.source.position(statement)
        if isinstance(statement, cst.SimpleStatementLine):
            return here.start.line, here.end.line
        place = self.source.position(node)
        last = place.start.line if type(node) in _HEADS else place.end.line
        return place.start.line, last

    # What several rules ask

    def stages(self, node: cst.CSTNode) -> frozenset[str]:
        """Return which stages of Lightning run the method around a node, one call deep.

        Among ``"training"``, ``"validation"``, ``"test"``, ``"predict"``.
        """
        method = self.source.method(node)
        if method is None:
            return frozenset()
        own = stage_of(method.name.value)
        if own:
            return frozenset({own})
        return frozenset(map(stage_of, self.source.callers(method))) - {""}

    def methods_of(self, *kinds: str) -> Iterator[cst.FunctionDef]:
        """Yield the methods of the file's classes that are of one of these kinds."""
        for node, found in self.source.classes.items():
            if found.kinds & set(kinds):
                yield from (m for m in found.methods.values() if self.source.is_within(m, node))

    # What is shown of a rule

    @classmethod
    def code(cls) -> str:
        """Return the code, such as ``DL101``."""
        return cls.__name__

    @classmethod
    def page(cls) -> str:
        """Return the documentation, without indentation."""
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the page."""
        return cls.page().partition("\n")[0]

    @classmethod
    def can_matter(cls, source: bytes, facts: Facts) -> bool:
        """Return whether the rule could report anything in a file of these bytes."""
        if cls.in_lightning and not has_lightning(source, facts):
            return False
        own = tuple(end_of(name).encode() for name in facts.collectives)
        groups = ((*g, *own) if COLLECTIVE_TOKENS[0] in g else g for g in cls.tokens)
        return all(any(token in source for token in group) for group in groups)


def has_lightning(source: bytes, facts: Facts) -> bool:
    """Return whether a file may have a class of Lightning, by its bytes or by bases elsewhere."""
    if any(token in source for token in LIGHTNING_TOKENS):
        return True
    return any({"lightning_module", "callback"} & base.kinds for base in facts.bases.values())


def stage_of(method: str) -> str:
    """Return the stage that a step or hook of Lightning belongs to, or ``""``."""
    if EVALUATION.fullmatch(method):
        return "validation" if "validation" in method else "test"
    for stage in ("training", "predict"):
        if method in (f"{stage}_step", f"on_{stage[:5]}_epoch_end", f"{stage}_epoch_end"):
            return stage
    return "training" if method.startswith("on_train_") else ""

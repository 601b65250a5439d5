"""A function that cannot be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from distlint.definitions import reaching
from distlint.facts import Facts
from distlint.pickling import is_local_class, keeps, unpicklable
from distlint.rules.base import Rule
from distlint.source import (
    Class,
    argument,
    dotted,
    keyword,
    last,
    number,
    object_of,
    self_attribute,
    string,
)

_POOLS = frozenset(
    {
        "multiprocessing.Pool",
        "multiprocessing.pool.Pool",
        "torch.multiprocessing.Pool",
        "concurrent.futures.ProcessPoolExecutor",
        "concurrent.futures.process.ProcessPoolExecutor",
    }
)
_SENDING = frozenset(
    {
        "map", "imap", "imap_unordered", "starmap", "map_async", "starmap_async", "apply",
        "apply_async", "submit",
    }
)  # fmt: skip
_SPAWNS = frozenset(
    {
        "torch.multiprocessing.spawn",
        "torch_xla.distributed.xla_multiprocessing.spawn",
    }
)
_WHOLE = frozenset({"lightning_module", "data_module", "callback", "module"})
_LOADER = "this {0} cannot be pickled for spawned workers: give <name> a module-level {1}"
_DATA = "a data set with this {0} cannot be pickled for spawned workers: use a module-level {1}"
_SENT = "an object with this {0} cannot be pickled by the spawning strategy: use a module-level {1}"
_OTHER = "this {0} cannot be pickled for another process: use a module-level {1}"


class DL005(Rule):
    """A lambda or local function is sent to another process, and cannot be pickled.

    What goes wrong: everything works where workers are forked, as on Linux before Python 3.14. On
    macOS and Windows, with ``ddp_spawn``, and from Python 3.14 on also on Linux, no worker starts:

        AttributeError: Can't get local object 'Data.__init__.<locals>.<lambda>'

    Why: what a spawned process is given is pickled, and pickles hold functions and classes by name.
    The other process cannot look up the name of a lambda, local function or local class.

    How to fix: write a module-level function or class, or a method. Pass it further arguments by
    ``functools.partial``. ``operator.itemgetter`` and ``torch.nn.Identity()`` replace many lambdas.

    When it is silent:

    - on loaders without workers, or with ``multiprocessing_context="fork"``
    - on loaders and data sets of a project for Linux alone (it names NCCL or SLURM) that never
      spawns
    - on functions that the same process calls, such as sort keys
    - on classes with ``__getstate__`` or ``__reduce__``
    - on attributes of modules, data modules and callbacks in projects without a strategy that
      spawns, except ``Lambda`` transforms of data modules
    - on attributes of all other classes that are not data sets
    """

    name = "unpicklable"
    shown = (
        "bad_collate_lambda",
        "good_function_of_the_module",
        "bad_transform_of_a_data_set",
        "good_no_workers",
    )
    severity = "warning"
    tokens = (
        (b"lambda", b"  def ", b"\tdef ", b"  class ", b"\tclass "),
        (b"DataLoader", b"Dataset", b"spawn", b"Pool", b"Lambda", b"__init__"),
    )

    @classmethod
    def can_matter(cls, source: bytes, facts: Facts) -> bool:
        """A class is sent if it is a data set, or if a strategy sends all."""
        named = any(token in source for token in cls.tokens[1][:-1])
        is_data = any("dataset" in base.kinds for base in facts.bases.values())
        is_sent = named or is_data or facts.spawning_strategy
        return is_sent and super().can_matter(source, facts)

    def check(self) -> None:
        """Report the functions that loaders, data sets and other processes are given."""
        found = [*self._of_loaders(), *self._of_classes(), *self._of_processes()]
        told: set[cst.CSTNode] = set()
        for node, said in sorted(found, key=lambda each: self.source.order(each[0])):
            statement = self.source.statement(node)
            if statement not in told:
                told.add(statement)
                kind = "class" if is_local_class(self.source, node) else "function"
                what = "lambda" if isinstance(node, cst.Lambda) else f"local {kind}"
                self.report(node, said.format(what, kind))

    def _find(self, *given: cst.BaseExpression | None) -> Iterator[cst.CSTNode]:
        for each in given:
            yield from unpicklable(self.source, each)

    @cached_property
    def _loaders(self) -> list[cst.Call]:
        return [c for c in self.source.nodes(cst.Call) if last(c.func) == "DataLoader"]

    def _of_loaders(self) -> Iterator[tuple[cst.CSTNode, str]]:
        for loader in filter(_has_workers, self._loaders if not self.facts.forks else ()):
            for name in ("collate_fn", "worker_init_fn"):
                for node in self._find(keyword(loader, name)):
                    yield node, _LOADER.replace("<name>", name)
            data = argument(loader, 0, "dataset")
            if isinstance(data, cst.Name):
                given = reaching(self.source, data).single
                data = given.value if given is not None and given.how == "is" else None
            if isinstance(data, cst.Call) and last(data.func)[:1].isupper():
                if is_local_class(self.source, data.func):
                    yield data.func, _DATA
                kept = [a.value for a in data.args if a.keyword and "transform" in a.keyword.value]
                yield from ((node, _DATA) for node in self._find(*kept))

    def _of_classes(self) -> Iterator[tuple[cst.CSTNode, str]]:
        """Yield what data sets keep, and modules where a strategy sends them as a whole."""
        loads = not self._loaders or any(map(_has_workers, self._loaders))
        loads = loads and not self.facts.forks
        whole = _WHOLE if self.facts.spawning_strategy else frozenset()
        for node, owner in self.source.classes.items():
            if any(map(owner.defines, ("__getstate__", "__reduce__", "__reduce_ex__"))):
                continue
            is_data = loads and _is_data(owner)
            for assign in self.source.below(node, cst.Assign):
                function = self.source.function(assign)
                is_init = function is not None and function.name.value == "__init__"
                is_kept = is_init and self_attribute(assign.targets[0].target) != ""
                if is_kept and (is_data or owner.kinds & whole):
                    said = _DATA if is_data else _SENT
                    yield from ((each, said) for each in self._find(assign.value))
            if is_data or (loads and "data_module" in owner.kinds):
                for call in self.source.below(node, cst.Call):
                    is_kept = keeps(self.source, call) and last(call.func) == "Lambda"
                    if is_kept and (
                        "data_module" in owner.kinds or self._is_made_early(call, owner)
                    ):
                        yield from ((each, _DATA) for each in self._find(call))

    def _is_made_early(self, node: cst.CSTNode, owner: Class) -> bool:
        """Return whether ``__init__`` of a data set makes something, not one of its workers."""
        method, init = self.source.method(node), owner.methods.get("__init__")
        if method is None or init is None or method is init:
            return method is init is not None
        return any(self.source.calls(init, f"self.{method.name.value}"))

    def _of_processes(self) -> Iterator[tuple[cst.CSTNode, str]]:
        pools = set(self._pools())
        for call in self.source.nodes(cst.Call):
            sent: list[cst.BaseExpression | None] = []
            if self.source.name(call.func) in _SPAWNS:
                sent = [argument(call, 0, "fn"), argument(call, 1, "args")]
            elif (owner := object_of(call)) and dotted(owner) in pools:
                is_sending = last(call.func) in _SENDING
                sent = [argument(call, 0, "func", "fn")] if is_sending else []
            yield from ((node, _OTHER) for node in self._find(*sent))

    def _pools(self) -> Iterator[str]:
        """Yield the variables that hold a pool of processes."""
        yield from (name for name, made in self.source.made.items() if made in _POOLS)
        for item in self.source.nodes(cst.WithItem):
            made = self.source.name(item.item.func) if isinstance(item.item, cst.Call) else ""
            if made in _POOLS and item.asname is not None:
                yield dotted(item.asname.name)


def _has_workers(loader: cst.Call) -> bool:
    """Return whether a loader is given workers that may be spawned."""
    workers = keyword(loader, "num_workers")
    context = string(keyword(loader, "multiprocessing_context"))
    return workers is not None and number(workers) != 0 and context != "fork"


def _is_data(owner: Class) -> bool:
    """Return whether a class is a data set of torch, or of a library that names its own so."""
    bases = [last(base.value) for base in owner.node.bases]
    is_named = any(name.endswith("Dataset") for name in bases)
    return "dataset" in owner.kinds or (is_named and owner.defines("__getitem__"))

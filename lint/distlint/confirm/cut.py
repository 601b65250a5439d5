"""Functions of a file, each compiled by itself at its own lines, with stand-ins for all that it does not define."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Generator
from types import FunctionType
from typing import Any

from distlint.analysis import Analysis, Value
from distlint.analysis.formula import DATA, RANK
from distlint.api import guard_decorator, name_effect, named_family
from distlint.confirm.builtins import Unordered, builtins_for, options_of
from distlint.confirm.rank import Rank
from distlint.confirm.stand_ins import About, StandIn, key_of
from distlint.syntax import ClassNode, Function, FunctionNode, SyntaxIndex

_REAL = {"contextlib.contextmanager": contextlib.contextmanager, "functools.partial": functools.partial}
_REAL_MODULES = {"collections": "collections", "itertools": "itertools"}
_SKIPPED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class _Rewriter(ast.NodeTransformer):
    """Makes sets ours, and lets a ``try`` know that it is one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def visit_Set(self, node: ast.Set) -> ast.expr:
        self.generic_visit(node)
        return _call("__unordered__", ast.List(node.elts, ast.Load()), node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        self.generic_visit(node)
        return _call("__unordered__", ast.ListComp(node.elt, node.generators), node)

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        if node.arg is None:
            node.value = _call("__options__", node.value, node.value)
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try:
        self.generic_visit(node)
        types = [each.type if each.type is not None else ast.Name("Exception", ast.Load()) for each in node.handlers]
        caught = ast.Lambda(_NO_ARGUMENTS, ast.Tuple([copy.deepcopy(each) for each in types], ast.Load()))
        number = ast.Constant(next(self._numbers) * 10_000 + node.lineno)
        attempt = ast.Call(ast.Name("__attempt__", ast.Load()), [number, ast.Constant(node.lineno), caught], [])
        whole = ast.With([ast.withitem(attempt)], node.body)
        ast.copy_location(whole, node)
        ast.copy_location(attempt, node)
        node.body = [whole]
        return node


_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _call(name: str, argument: ast.expr, at: ast.expr) -> ast.expr:
    call = ast.Call(ast.Name(name, ast.Load()), [ast.copy_location(argument, at)], [])
    return ast.copy_location(call, at)


class Cut:
    """The code of a file, ready to be run by ranks.

    Args:
        analysis: of the file.

    Attributes:
        counts_logs: see ``Meeting``.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.counts_logs = False
        self.index: SyntaxIndex = analysis.index
        self._code = {each: self._compile(each) for each in self.index.all_functions[1:]}
        body = [each for each in self.index.tree.body if not isinstance(each, _SKIPPED)]
        self._statements = [(each, self._compiled([each])) for each in body]
        nodes = ast.walk(self.index.tree)
        self._names = {node.id for node in nodes if isinstance(node, ast.Name)}

    def _compile(self, function: FunctionNode) -> Any:
        assert isinstance(function.node, Function)
        node = copy.copy(function.node)
        node.decorator_list, node.returns = [], None
        return self._compiled([_without_annotations(node)])

    def _compiled(self, body: list[Any]) -> Any:
        tree = _Rewriter().visit(ast.Module(copy.deepcopy(body), []))
        return compile(ast.fix_missing_locations(tree), self.index.path, "exec", dont_inherit=True)

    def load(self, rank: Rank) -> None:
        """Give a rank the names of the file."""
        rank.globals |= {
            "__builtins__": builtins_for(rank),
            "__name__": "__main__",
            "__unordered__": functools.partial(Unordered, rank),
            "__attempt__": rank.answers.attempt,
            "__options__": options_of,
        }
        for name in self._names - rank.globals["__builtins__"].keys():
            rank.globals[name] = rank.named(name)
        for name, full in self.index.imports.items():
            rank.globals[name] = self._import(rank, full)
        for function in self._code:
            rank.functions[function] = self._function(rank, function)
        for name, function in self.index.functions.items():
            rank.globals[name] = rank.functions[function]
        for name, owner in self.index.classes.items():
            rank.globals[name] = self._maker(rank, owner)
        for statement, code in self._statements:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                with contextlib.suppress(Exception):
                    exec(code, rank.globals)  # noqa: S102 - this command is for it

    def _import(self, rank: Rank, name: str) -> Any:
        if name in _REAL:
            return _REAL[name]
        module, _, last = name.partition(".")
        if module in _REAL_MODULES:
            real = __import__(module)
            return getattr(real, last, real) if last else real
        return rank.imported(name)

    def _function(self, rank: Rank, function: FunctionNode) -> Any:
        names: dict[str, Any] = {}
        try:
            exec(self._code[function], rank.globals, names)  # noqa: S102
        except Exception:  # noqa: BLE001 - a default that cannot be computed from stand-ins
            return rank.unknown("function", function.name)
        plain = names[function.name]
        assert isinstance(plain, FunctionType)
        made: Any = _driven(plain)
        for decorator in function.decorators:
            name = self.index.text_of(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if guard_decorator(name) and rank.number:
                made = functools.wraps(plain)(lambda *args, **options: None)
            elif name.endswith("contextmanager"):
                made = contextlib.contextmanager(plain)
        return made

    def _maker(self, rank: Rank, owner: ClassNode) -> Callable[..., Any]:
        def make(*args: Any, **options: Any) -> Any:
            key = key_of("make", owner.name, args, options)
            made = StandIn(About(rank, key, owner.name, family=self.analysis.family(owner), cls=owner))
            for each in self.index.lineage(owner):
                if "__init__" in each.methods:
                    rank.functions[each.methods["__init__"]](made, *args, **options)
                    break
            return made

        return make

    def run(self, rank: Rank, function: FunctionNode) -> None:
        """Run a function, or the file's own statements, as a rank."""
        if function.name == "<module>":
            for statement, code in self._statements:
                if not isinstance(statement, ast.Assign | ast.AnnAssign):
                    exec(code, rank.globals)  # noqa: S102
            return
        args, options = self._arguments(rank, function)
        result = rank.functions[function](*args, **options)
        family = self.analysis.family(function.owner) if function.owner is not None else ""
        if family == "lightning_module" and function.name == "training_step" and result is not None:
            rank.meeting.meet("backward of the trainer")
        if isinstance(result, contextlib.AbstractContextManager) and not isinstance(result, StandIn):
            with result:
                pass
        elif isinstance(result, Generator):
            for _ in result:
                pass

    def _arguments(self, rank: Rank, function: FunctionNode) -> tuple[list[Any], dict[str, Any]]:
        assert isinstance(function.node, Function)
        known = self.analysis.reports[function].parameters
        given = {name: self._argument(rank, name, value) for name, value in known.items()}
        if function.is_method and function.owner is not None and not function.is_static and given:
            first = next(iter(given))
            given[first] = self._own(rank, function.owner)
        only = {each.arg for each in function.node.args.kwonlyargs}
        named = {name: value for name, value in given.items() if name in only}
        return [value for name, value in given.items() if name not in only], named

    def _own(self, rank: Rank, owner: ClassNode) -> Any:
        """An instance, set up as far as stand-ins go."""
        init = next(
            (each.methods["__init__"] for each in self.index.lineage(owner) if "__init__" in each.methods), None
        )
        names = list(self.analysis.reports[init].parameters.items())[1:] if init is not None else []
        made = StandIn(About(rank, key_of("self"), "self", family=self.analysis.family(owner), cls=owner))
        if init is not None:
            with contextlib.suppress(Exception):
                rank.functions[init](made, *(self._argument(rank, name, value) for name, value in names))
        return made

    def _argument(self, rank: Rank, name: str, value: Value) -> Any:
        effect = name_effect(name)
        if value.family in ("rank", "local_rank", "world") or (effect is not None and not value.family):
            return rank.told(effect.kind if effect is not None else value.family)
        is_local = value.varies in (DATA, RANK)
        key = key_of("parameter", name, rank.number if is_local else None)
        family = value.family or named_family(name)
        cls = value.target if value.instance and isinstance(value.target, ClassNode) else None
        about = About(rank, key, name, family=family, cls=cls, is_local=is_local, wrapped=value.wrapped)
        about.is_even = value.family == "batch"
        return StandIn(about)


def _without_annotations(node: Any) -> Any:
    """A copy whose parameters have no annotations: they would be computed."""
    node.args = copy.deepcopy(node.args)
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            each.annotation = None
    return node


def _driven(function: FunctionType) -> Any:
    """A coroutine is run to its end where it is called: stand-ins never wait."""
    if not function.__code__.co_flags & 0x80:
        return function

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        coroutine = function(*args, **options)
        try:
            while True:
                coroutine.send(None)
        except StopIteration as ended:
            return _Awaitable(ended.value)

    return call


class _Awaitable:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._value

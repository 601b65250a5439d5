"""For how many devices a file makes its trainers, read with Python's own parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

ONE, OTHER, BY_SETTINGS = "one device", "other devices", "devices that settings give"
UNSAID = "devices that nothing says"  # one process, where nothing else is said
DEFAULT = "devices by default"  # likewise: nothing is said to the trainer; Lightning 2 takes all devices that it sees
_MAKERS = frozenset({"LightningCLI", "Trainer"})
_OTHER_MAKERS = frozenset({"from_argparse_args", "instantiate"})
_MADE_HERE = frozenset({"Trainer", "from_argparse_args"})  # whose keywords are the trainer's, and win
_OTHER_TRAINERS = frozenset({"composer", "fastai", "sentence_transformers", "setfit", "transformers", "trl"})
_COUNTS = frozenset({"devices", "gpus", "tpu_cores", "ipus", "num_processes"})
_HOW = frozenset({"accelerator", "distributed_backend", "num_nodes", "strategy"})
_ONE_DEVICE = frozenset({"auto", "single_device"})
_TAKES_ALL = "lightning"  # the package of that name, 2.0 and later in all but name
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Not a command line, which offers other numbers.
_SETTINGS = re.compile(r"^_?(?:(?:pl|train|trainer|training)_)?(cfg|conf|config|settings)s?$")
_DEEPEST = 3


def read_devices(tree: ast.Module) -> frozenset[str]:
    """What a module's trainers are made for: one device, what settings give, nothing said, others; empty without."""
    reader = _Reader(tree)
    return frozenset(reader.devices(call) for call in reader.makers())


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._calls = [call for call in calls if _tail(call.func) in _MAKERS | _OTHER_MAKERS]
        self._foreign = frozenset(_foreign(nodes)) if self._calls else frozenset()
        self._values = _values(nodes) if self._calls else {}
        self._defaults = _defaults(nodes) if self._calls else {}
        self._takes_all = bool(self._calls) and any(map(_imports_new, nodes))
        self._sees_one = bool(self._calls) and _sees_one_device(tree, nodes)

    def makers(self) -> Iterator[ast.Call]:
        """The calls that make a trainer, or may do so."""
        return (call for call in self._calls if _head(call.func) not in self._foreign)

    def devices(self, call: ast.Call) -> str:
        """For what a call makes its trainer."""
        if _tail(call.func) == "instantiate":
            return BY_SETTINGS
        given = {each.arg for each in call.keywords}
        if _tail(call.func) == "Trainer" and None in given and not given & (_COUNTS | _HOW):
            return BY_SETTINGS
        if self.is_for_one(call):
            return ONE
        if self.is_by_settings(call):
            return BY_SETTINGS
        if not self.says_nothing(call):
            return OTHER
        return UNSAID if any(each.arg in _COUNTS | {"num_nodes"} for each in call.keywords) else DEFAULT

    def is_by_settings(self, call: ast.Call) -> bool:
        """Whether all that is said of devices is read from settings: ``devices=config.trainer.devices``."""
        if _tail(call.func) != "Trainer" or any(each.arg is None for each in call.keywords):
            return False
        said = [each.value for each in call.keywords if each.arg in _COUNTS | {"num_nodes", "strategy"}]
        read = [value for value in said if _SETTINGS.search(_head(value).lower())]
        return bool(read) and all(value in read or _is_none(value) or self._is_one(value) for value in said)

    def says_nothing(self, call: ast.Call) -> bool:
        """Whether nothing about devices is said but that there is one at most where nobody says otherwise."""
        given = {each.arg: each.value for each in call.keywords}
        if _tail(call.func) != "Trainer" or None in given or any(isinstance(arg, ast.Starred) for arg in call.args):
            return False
        counts = [value for name, value in given.items() if name in _COUNTS | {"num_nodes"}]
        if not all(map(self._is_one_by_default, counts)) or "strategy" in given:
            return False
        if counts:
            return True
        return not self._takes_all and given.keys().isdisjoint(_HOW)

    def _is_one_by_default(self, node: ast.expr) -> bool:
        """A number of devices that is one at most, or not given; a parameter counts as its default."""
        if _is_none(node) or self._is_one(node):
            return True
        if not isinstance(node, ast.Name):
            return False
        found = [value for value in self._values.get(node.id, []) if value is not None]
        defaults = self._defaults.get(node.id, [])
        if len(found) + len(defaults) != len(self._values.get(node.id, [])):
            return False  # a loop variable, say
        values = [*found, *defaults]
        return bool(values) and all(value is not None and (_is_none(value) or self._is_one(value)) for value in values)

    def is_for_one(self, call: ast.Call) -> bool:
        """Whether the arguments of a trainer say one device, or one process for all, and nothing against it.

        What is written out can't be said again by ``**settings`` beside it.
        """
        given = {each.arg: each.value for each in call.keywords}
        if _tail(call.func) not in _MADE_HERE or any(isinstance(a, ast.Starred) for a in call.args):
            return False
        nodes, strategy, kind = given.get("num_nodes"), given.get("strategy"), given.get("accelerator")
        counts = [value for name, value in given.items() if name in _COUNTS]
        if nodes is not None and not self._is_one(nodes):
            return False
        if any(map(_is_dp, (kind, strategy, given.get("distributed_backend")))):
            return True
        if counts:  # a strategy of several processes has one then
            return all(map(self._is_one, counts))
        if None in given:
            return False
        if strategy is not None and not (isinstance(strategy, ast.Constant) and strategy.value in _ONE_DEVICE):
            return False
        if isinstance(kind, ast.Constant) and str(kind.value).startswith(("ddp", "horovod")):
            return False
        is_cpu = isinstance(kind, ast.Constant) and kind.value == "cpu"  # a process, where nothing says more
        may_be_one = self._sees_one or is_cpu
        return may_be_one and _tail(call.func) == "Trainer"

    def _is_one(self, node: ast.expr, depth: int = 0) -> bool:
        """A number of devices that is one at most: written out, limited to one, or a name for such."""
        if isinstance(node, ast.Constant):
            return not isinstance(node.value, bool) and node.value in (0, 1, "1")
        if isinstance(node, ast.List | ast.Tuple):
            return len(node.elts) == 1 and not isinstance(node.elts[0], ast.Starred)
        if isinstance(node, ast.IfExp):
            return all(self._is_one(arm, depth) or _is_none(arm) for arm in (node.body, node.orelse))
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name == "int" and len(node.args) == 1:
                return _is_yes_or_no(node.args[0])
            return name == "min" and any(isinstance(arg, ast.Constant) and arg.value == 1 for arg in node.args)
        if isinstance(node, ast.Name) and depth < _DEEPEST:
            values = self._values.get(node.id, [])
            return bool(values) and all(value is not None and self._is_one(value, depth + 1) for value in values)
        return False


def _is_dp(node: ast.expr | None) -> bool:
    """``"dp"``: one process that splits each batch."""
    return isinstance(node, ast.Constant) and node.value == "dp"


def _sees_one_device(tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Whether the file shows itself one GPU, at module level: ``os.environ["CUDA_VISIBLE_DEVICES"] = "0"``."""
    told = [node for node in nodes if isinstance(node, ast.Assign) and any(map(_is_visible, node.targets))]
    values = [node.value.value for node in told if isinstance(node.value, ast.Constant)]
    are_one = len(values) == len(told) and all(isinstance(value, str) and value.isdecimal() for value in values)
    return are_one and any(node in tree.body for node in told)


def _is_visible(node: ast.expr) -> bool:
    """``os.environ["CUDA_VISIBLE_DEVICES"]``."""
    if not isinstance(node, ast.Subscript) or _tail(node.value) != "environ":
        return False
    return isinstance(node.slice, ast.Constant) and node.slice.value == _VISIBLE


def _values(nodes: list[ast.AST]) -> Mapping[str, list[ast.expr | None]]:
    """What every name of the file is assigned; None where that is not written out, as for a parameter."""
    found: dict[str, list[ast.expr | None]] = {}
    known: set[ast.Name] = set()
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = [(node.target, node.value)]
        else:
            targets = []
        for target, value in targets:
            if isinstance(target, ast.Name):
                known.add(target)
                found.setdefault(target.id, []).append(value)
        if isinstance(node, ast.arg):
            found.setdefault(node.arg, []).append(None)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in known:
            found.setdefault(node.id, []).append(None)
    return found


def _defaults(nodes: list[ast.AST]) -> Mapping[str, list[ast.expr | None]]:
    """The defaults of all parameters of a name; None for one without."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
        if isinstance(node, ast.arguments):
            plain = [*node.posonlyargs, *node.args]
            given: list[ast.expr | None] = [None] * (len(plain) - len(node.defaults)) + list(node.defaults)
            for arg, default in zip([*plain, *node.kwonlyargs], [*given, *node.kw_defaults], strict=True):
                found.setdefault(arg.arg, []).append(default)
            for rest in (node.vararg, node.kwarg):
                if rest is not None:
                    found.setdefault(rest.arg, []).append(None)
    return found


def _imports_new(node: ast.AST) -> bool:
    """Whether a node imports the package ``lightning``."""
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").partition(".")[0] == _TAKES_ALL
    return isinstance(node, ast.Import) and any(each.name.partition(".")[0] == _TAKES_ALL for each in node.names)


def _foreign(nodes: list[ast.AST]) -> Iterator[str]:
    """Names by which a module reaches trainers of other kinds."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _OTHER_TRAINERS:
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias for alias in node.names if alias.name.partition(".")[0] in _OTHER_TRAINERS)
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)


def _is_yes_or_no(node: ast.expr) -> bool:
    """``torch.cuda.is_available()``, a comparison, or several of these: a number of devices of one at most."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_yes_or_no, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _tail(node.func) == "is_available")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _tail(node: ast.expr) -> str:
    """The last identifier of a name or an attribute."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _head(node: ast.expr) -> str:
    """The first identifier of a chain of attributes and keys, after ``self``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return node.attr
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""

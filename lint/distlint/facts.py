"""What is known of a whole project: each fact with the file and line that it comes from.

Facts are read line by line from code and settings alike, so that ``devices=4`` in a trainer,
``devices: 4`` in YAML and ``--trainer.devices 4`` in a script are one fact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distlint.apis import canonical, family_of

# Between a name and its value: an equals sign, a colon of YAML or JSON, or the space of an option.
_IS = r"[\"']?\s*(?:=|:(?:\s*(?:int|str))?\s*=?|\s)\s*[\"']?"
_SEVERAL = r"(?:[2-9]|[1-9]\d+)\b|-1\b|\[\s*\d+\s*,\s*\d|\d\s*,\s*\d"
_MANY = {
    "devices": rf"\b(?:devices|gpus|num_gpus|n_gpus|ngpus|gpus_per_node|tpu_cores){_IS}"
    rf"(?:{_SEVERAL})",
    "nodes": rf"\b(?:num_nodes|nnodes){_IS}(?:{_SEVERAL})",
    "processes": rf"\b(?:num_processes|nproc[_-]per[_-]node|ntasks(?:-per-node)?){_IS}"
    r"(?:(?:[2-9]|[1-9]\d+)\b|gpu|auto|\$)",
    "batch system": r"#SBATCH.*--gres=gpu:(?:\w+:)?(?:[2-9]|[1-9]\d)|gpus-per-node=[2-9]",
    "visible devices": r"\bCUDA_VISIBLE_DEVICES=[\"']?\d\s*,\s*\d",
    "strategy": rf"\b(?:strategy|accelerator|distributed_backend|plugins){_IS}"
    r"(?:ddp|fsdp|deepspeed|horovod|ddp_\w+|fsdp_\w+|deepspeed_\w+|dp\b|colossalai|bagua)",
    "launcher": r"\btorchrun\b(?!.*nproc[_-]per[_-]node[= ]1\b)"
    r"|torch\.distributed\.(?:launch|run)\b(?!.*nproc[_-]per[_-]node[= ]1\b)"
    r"|accelerate launch.*(?:--multi_gpu|--num_processes[= ](?:[2-9]|\d\d|\$)|--config_file)"
    r"|^\s*deepspeed\s+\S*\.py|\bmpirun\b|\bhorovodrun\b",
    "accelerate": r"\bdistributed_type[\"']?:\s*[\"']?(?:MULTI_GPU|FSDP|DEEPSPEED|TPU|XLA)",
    "wrapper": r"\b(?:DistributedDataParallel|FullyShardedDataParallel|fully_shard|DDPStrategy"
    r"|FSDPStrategy|DeepSpeedStrategy|DDPPlugin|DeepSpeedPlugin|init_process_group"
    r"|deepspeed\.initialize|DDPSpawnStrategy)\s*\(|_target_:.*(?:DDP|FSDP|DeepSpeed)\w*",
}  # fmt: skip
_SPAWNS = (
    r"ddp_spawn|\b(?:mp|multiprocessing|xmp|torch_mp)\.spawn\s*\(|DDPSpawn"
    r"|start_method[\"']?\s*[=(:]\s*[\"']spawn|get_context\(\s*[\"']spawn"
    r"|multiprocessing_context\s*=\s*[\"']spawn|strategy\s*=\s*[\"']xla"
)
# Strategies that pickle the module, the data module and the callbacks of a trainer.
_SPAWNING = (
    r"\bstrategy[\"']?\s*[=:]\s*[\"']?ddp\w*_spawn\b|--(?:trainer\.)?strategy[= ]ddp\w*_spawn\b"
    r"|\bDDPSpawn\w+\s*\("
)
_DP = (
    rf"\b(?:strategy|accelerator|distributed_backend){_IS}dp\b"
    r"|\bDataParallel(?:Strategy|Plugin)\s*\("
)
_QUOTED_DP = re.compile(r"[\"']dp[\"']|DataParallel")
_MONITOR = (
    r"\b(?:monitor|monitor_metric|metric_for_best_model|early_stop_metric|checkpoint_metric)"
    r"[\"']?\s*[=:]\s*(?P<quote>[\"']?)(?P<name>[\w./@-]+)"
)
_TRAINER = (
    r"\b(?:pl|L|lightning|pytorch_lightning)\.Trainer\b|LightningCLI\s*\("
    r"|\b_target_:\s*(?:pytorch_)?lightning[.\w]*Trainer\b"
    r"|from (?:pytorch_lightning|lightning)[.\w]* import .*\bTrainer\b"
)
_OWN_SAMPLER = r"\b(?:use_distributed_sampler|replace_sampler_ddp)[\"']?\s*[=:]\s*[Ff]alse"
# A trainer of one device: what it fits is not run by another one of the project.
_ONE = r"\b(?:devices|gpus)\s*=\s*(?:1\b|\[\s*\d\s*\])"
# Processes of loaders are forked where only Linux will do; Windows and macOS spawn them.
_LINUX = (
    r"start_method\(\s*[\"']fork|get_context\(\s*[\"']fork[\"']|\bnccl\b|\bNCCL_|^\#SBATCH|\bsrun\b"
)
_WINDOWS = (
    r"\b(?:windows|macos)-(?:latest|\d)|[\"']mps[\"']|\bwin32\b|platform\.system\(\)|OS Independent"
)
_PATTERNS = {
    **{f"many: {name}": pattern for name, pattern in _MANY.items()},
    "spawns": _SPAWNS,
    "spawning strategy": _SPAWNING,
    "dp": _DP,
    "monitors": _MONITOR,
    "trainer": _TRAINER,
    "own sampler": _OWN_SAMPLER,
    "one device": _ONE,
    "Linux": _LINUX,
    "Windows or macOS": _WINDOWS,
}
_COMPILED = {name: re.compile(pattern) for name, pattern in _PATTERNS.items()}
# A line without one of these says nothing: most lines are passed over quickly.
_WORDS = re.compile(
    r"devices|gpus|nodes|nproc|ntasks|num_processes|SBATCH|tpu_cores|VISIBLE_DEVICES|strategy"
    r"|accelerator|distributed|plugins|torchrun|accelerate|deepspeed|mpirun|horovod|DataParallel"
    r"|Sharded|fully_shard|Strategy|Plugin|init_process_group|_target_|spawn|Spawn|monitor"
    r"|metric_for|_metric|Trainer|LightningCLI|_sampler|start_method|get_context"
    r"|mps|nccl|NCCL|srun|windows|macos|win32|platform\.system|OS Independent"
)
_CLASS = re.compile(
    r"^(?P<indent>[ \t]*)(?:class\s+(?P<name>\w+)\s*(?:\((?P<bases>[^)]*)\))?\s*:"
    r"|(?:async\s+)?def\s+(?P<method>\w+))",
    re.MULTILINE,
)
_IMPORT = re.compile(
    r"^[ \t]*(?:from\s+(?P<package>[.\w]+)\s+import\s+(?P<names>\([^)]*\)|[^\n]+)"
    r"|import\s+(?P<modules>[^\n]+))",
    re.MULTILINE,
)
_LONGEST_LINE = 400
_IN_TESTS = re.compile(r"(?:^|/)tests?/|(?:^|/)test_[^/]*$")
# What is no fact: a comment, but for those that are read by SLURM.
_COMMENT = re.compile(
    r"""(?P<kept>^\#SBATCH.*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?:^|(?<=\s))\#.*|^//.*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Fact:
    """One thing that a line says.

    Attributes:
        what: such as ``"many: strategy"`` or ``"monitors"``.
        path: the file.
        line: from 1.
        text: the line.
        value: the name that is monitored, else ``""``.
    """

    what: str
    path: str
    line: int
    text: str
    value: str = ""


@dataclass(frozen=True)
class ClassFact:
    """A class of the project, as its file says.

    Attributes:
        name: of the class.
        bases: qualified names, as far as imports tell.
        methods: names of its functions.
    """

    name: str
    bases: tuple[str, ...]
    methods: frozenset[str]


@dataclass(frozen=True)
class Base:
    """What a class brings along to those derived from it."""

    kinds: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scan:
    """What one file says of its project.

    Attributes:
        facts: its lines that say something.
        classes: that it defines.
        imported: the qualified names of what it imports.
    """

    facts: tuple[Fact, ...] = ()
    classes: tuple[ClassFact, ...] = ()
    imported: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """What the rules ask about the project of a file.

    Attributes:
        devices: ``"one"``, ``"many"``, or ``""`` where nothing tells.
        monitored: the logged names that something monitors; ``""`` among them is a name not known.
        spawns: whether processes are started by spawning.
        spawning_strategy: whether a trainer is named a strategy that spawns.
        dp: whether the trainer is told to replicate modules by DataParallel (dp).
        has_trainer: whether a Trainer of Lightning runs the project.
        own_sampler: whether the trainer is told to leave samplers alone.
        forks: whether the project runs where the workers of loaders are forked.
        collectives: functions of the user's own that every rank must call.
        averageable: metrics of the user's own of which a mean over ranks is right.
        non_averageable: those of which it is wrong, with the reason.
        bases: the project's classes by the qualified name that the file imports them under.
    """

    devices: str = ""
    monitored: frozenset[str] = frozenset()
    spawns: bool = False
    spawning_strategy: bool = False
    dp: bool = False
    has_trainer: bool = False
    own_sampler: bool = False
    forks: bool = False
    collectives: frozenset[str] = frozenset()
    averageable: frozenset[str] = frozenset()
    non_averageable: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, Base] = field(default_factory=dict)

    def base(self, name: str) -> Base:
        """Return what a class of the project is, by the name that a file knows it by."""
        return self.bases.get(name, _NOTHING)


_NOTHING = Base()


def scan(text: str, path: str) -> Scan:
    """Return what a file of code or settings says of its project."""
    facts = tuple(_facts(text, path))
    if not path.endswith(".py"):
        return Scan(facts)
    names = _imports(text)
    return Scan(facts, tuple(_classes(text, names)), frozenset(names.values()))


def _facts(text: str, path: str) -> Iterator[Fact]:
    line, at, end = 1, 0, -1
    fits = path.endswith(".py") and ".fit(" in text and not _IN_TESTS.search(path)
    for found in _WORDS.finditer(text):
        if found.start() < end:
            continue  # a line that was looked at
        start = text.rfind("\n", 0, found.start()) + 1
        end = text.find("\n", found.start())
        end = len(text) if end < 0 else end
        if end - start > _LONGEST_LINE:
            continue
        shown = text[start:end].strip()
        said = _COMMENT.sub(r"\g<kept>", shown)
        for what, pattern in _COMPILED.items():
            if (what == "one device" and not fits) or pattern.search(said) is None:
                continue
            if what == "dp" and path.endswith(".py") and not _QUOTED_DP.search(said):
                continue  # a docstring, or a variable
            line += text.count("\n", at, start)
            at = start
            names = _monitored(pattern, said, path) if what == "monitors" else [""]
            yield from (Fact(what, path, line, shown, name) for name in names)


def _monitored(pattern: re.Pattern[str], said: str, path: str) -> list[str]:
    """Return the names that a line says are monitored; ``""`` is that of a variable."""
    is_code = path.endswith(".py")
    return [m["name"] if m["quote"] or not is_code else "" for m in pattern.finditer(said)]


def _imports(text: str) -> dict[str, str]:
    """Return what the names that a file imports stand for."""
    found: dict[str, str] = {}
    for match in _IMPORT.finditer(text):
        package = match["package"]
        listed = (match["names"] if package else match["modules"]).strip("() \t\n")
        for part in re.sub(r"#[^\n]*", "", listed).split(","):
            name, _, alias = part.strip().partition(" as ")
            name, alias = name.strip(), alias.strip()
            if not name:
                continue
            if package:
                dot = "" if package.endswith(".") else "."
                found[alias or name] = canonical(f"{package}{dot}{name}")
            else:
                found[alias or name.partition(".")[0]] = name if alias else name.partition(".")[0]
    return found


def _classes(text: str, names: Mapping[str, str]) -> Iterator[ClassFact]:
    """Yield the classes of a file with their bases and methods."""
    open_: list[tuple[int, str, tuple[str, ...], set[str]]] = []
    for match in _CLASS.finditer(text):
        indent = len(match["indent"].expandtabs())
        if match["method"]:
            for depth, _, _, methods in reversed(open_):
                if depth < indent:
                    methods.add(match["method"])
                    break
            continue
        bases = []
        for part in (match["bases"] or "").split(","):
            written = re.sub(r"\[.*|#.*", "", part).strip()
            if written and "=" not in written:
                head, dot, rest = written.partition(".")
                bases.append(canonical(names.get(head, head) + dot + rest))
        open_.append((indent, match["name"], tuple(bases), set()))
    for _, name, bases_, methods in open_:
        yield ClassFact(name, bases_, frozenset(methods))


class Project:
    """The facts of all files of one project.

    Args:
        scans: by path.
        settings: what the user has declared, which counts for more.
    """

    def __init__(self, scans: Mapping[str, Scan], settings: Facts) -> None:
        self._scans = scans
        self._settings = settings
        self._by_name: dict[str, list[tuple[str, ClassFact]]] = {}
        for path, found in scans.items():
            for each in found.classes:
                self._by_name.setdefault(each.name, []).append((_module(path), each))
        self._starred = {
            _module(path)
            for path, found in scans.items()
            if any(name.endswith(".*") for name in found.imported)
        }
        self.facts = [fact for found in scans.values() for fact in found.facts]
        kinds = {fact.what for fact in self.facts}
        self._evidence = _by_folder(self.facts)
        is_elsewhere = {"spawns", "Windows or macOS"} & kinds
        self._common = replace(
            settings,
            monitored=frozenset(fact.value for fact in self.facts if fact.what == "monitors"),
            spawns="spawns" in kinds,
            spawning_strategy="spawning strategy" in kinds,
            forks="Linux" in kinds and not is_elsewhere,
        )

    def of(self, path: str) -> Facts:
        """Return what the rules are told when they look at one file."""
        here = self._scans.get(path, Scan())
        wanted = {base for each in here.classes for base in each.bases} | here.imported
        known = {name: base for name in wanted if (base := self._base(name, path)) != _NOTHING}
        own_sampler = any(
            fact.what == "own sampler" and path.startswith(_part(fact.path)) for fact in self.facts
        )
        return replace(
            self._common,
            devices=self._settings.devices or self._devices(path),
            has_trainer="trainer" in self._nearest(path, {"trainer", "own loop"}),
            dp=self._nearest(path, {"dp", "other strategy"}) == {"dp"},
            bases={**self._settings.bases, **known},
            own_sampler=own_sampler,
        )

    def _devices(self, path: str) -> str:
        """Return how many devices run a file: the nearest folder with evidence decides.

        Where one trainer there has several devices and another has one, nobody knows.
        """
        return "many" if self._nearest(path, {"many", "one"}) == {"many"} else ""

    def _nearest(self, path: str, wanted: set[str]) -> set[str]:
        """Return which kinds of evidence the nearest folder has, its own folders included."""
        for folder in _folders(path):
            found = self._evidence.get(folder, set()) & wanted
            if found:
                return found
        return set()

    def _base(
        self, name: str, path: str, seen: frozenset[tuple[str, ClassFact]] = frozenset()
    ) -> Base:
        """Return what a class is, through its bases in other files of the project."""
        kind = family_of(name)
        if kind:
            return Base(frozenset({kind}))
        declared = self._settings.bases.get(name)
        if declared is not None:
            return declared
        found = self._find(name, path)
        if found is None or found in seen:
            return _NOTHING
        where, fact = found
        above = [self._base(base, where, seen | {found}) for base in fact.bases]
        return Base(
            frozenset().union(*(each.kinds for each in above)),
            fact.methods.union(*(each.methods for each in above)),
        )

    def _find(self, name: str, path: str) -> tuple[str, ClassFact] | None:
        """Return the class that a name imported in a file stands for."""
        package, _, own = name.rpartition(".")
        listed = self._by_name.get(own, [])
        if not package:  # of the file itself
            own_file = [each for each in listed if each[0] == _module(path)]
            listed = own_file or (listed if _module(path) in self._starred else [])
        wanted = package.lstrip(".")
        exact = [each for each in listed if ("." + each[0]).endswith("." + wanted) or not wanted]
        # A package may hand on what one of its modules defines.
        root = wanted.partition(".")[0]
        inside = [each for each in listed if root in each[0].split(".")]
        for candidates in (exact, inside, listed if package.startswith(".") else []):
            if len(candidates) == 1:
                return candidates[0]
        return None


def _part(settings: str) -> str:
    """Return the folder whose code a file of settings is for: around ``conf`` or ``configs``."""
    if settings.endswith(".py"):
        return ""
    before = re.split(r"(?:^|/)(?:conf|config|configs|cfg|cfgs)/", settings, maxsplit=1)[0]
    return before + "/" if before and before != settings else ""


def _folders(path: str) -> list[str]:
    """Return the folders that a file is in, the nearest first, however its path is spelled."""
    parts = os.path.abspath(path).replace("\\", "/").split("/")[:-1]  # noqa: PTH100
    return ["/".join(parts[:number]) for number in range(len(parts), -1, -1)]


def _by_folder(facts: Sequence[Fact]) -> dict[str, set[str]]:
    """Return by folder what anything in it, or below, speaks for."""
    found: dict[str, set[str]] = {}
    many = {fact.path for fact in facts if fact.what.startswith("many")}
    dp = {(fact.path, fact.line) for fact in facts if fact.what == "dp"}
    for fact in facts:
        kinds = {"trainer", "dp"} & {fact.what}
        if fact.what == "many: strategy" and (fact.path, fact.line) not in dp:
            kinds.add("other strategy")
        if fact.what.startswith("many"):
            kinds.add("many")
        elif fact.what == "one device" and fact.path not in many:
            kinds.add("one")
        if fact.what == "many: wrapper" and "Strategy" not in fact.text:
            kinds.add("own loop")
        for folder in _folders(fact.path):
            found.setdefault(folder, set()).update(kinds)
    return found


def _module(path: str) -> str:
    """Return the dotted name of a file's module, as far as its folders tell."""
    plain = path.replace("\\", "/").removesuffix(".py").removesuffix("/__init__")
    return plain.strip("./").replace("/", ".")


def describe(project: Project, settings: Facts) -> str:
    """Return the facts of a project as lines for people: what, where, and the line itself."""
    shown = []
    if settings.devices:
        shown.append(f'devices = "{settings.devices}" by [tool.distlint]')
    for what in _PATTERNS:
        found = [fact for fact in project.facts if fact.what == what]
        label = what.replace("many: ", "several devices, by ")
        shown += [f"{fact.path}:{fact.line}: {label}: {fact.text}" for fact in found]
    return "".join(f"{line}\n" for line in shown or ["nothing is known of this project"])

"""The first pass: outlines of the files to check, and of those they import."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from distlint.document import python_of
from distlint.facts.outline import Outline, read_outline
from distlint.facts.releases import SHARDED
from distlint.facts.settings import DYNAMIC, LOOP, NAMED, SEVERAL, read_set_devices
from distlint.modules import find_module, module_key
from distlint.text import Text

_OPT_OUT = re.compile(
    rb"\b(use_distributed_sampler|replace_sampler_ddp)\b[\"']?\s*\]?\s*(?::\s*bool\s*)?(?:[=:]|\s)\s*(?:False|false)\b"
)
_TRAINER = re.compile(rb"Trainer|LightningCLI")
_HANDS = re.compile(
    rb"Trainer[.(]|Fabric\(|Accelerator\(|LightningCLI|spawn|forkserver|torch\.save|pickle\.dump|num_workers"
)
_PLACES = re.compile(rb"lightning|DataParallel|accelerat|deepspeed|fabric|fsdp|fully_shard|horovod|Trainer", re.I)
_EVALUATES = re.compile(
    rb"gather|DistributedSampler|(?:def|class) \w*(?:eval|valid|test|infer|predict|collect|merge)", re.I
)
_SHARDED = re.compile(rb"deepspeed|fsdp|ddp_sharded|zero_?stage", re.I)
_SEVERAL = re.compile(
    rb"sync_dist|DistributedSampler|DataParallel|init_process_group|all_gather|all_reduce|world_?size|num_nodes"
    rb"|is_global_zero|rank_zero|local_rank|torchrun|torch\.distributed|accelerate launch|horovod"
    rb"|\bddp|(?<![A-Za-z])DDP|fsdp|deepspeed",
    re.I,
)
_LOOP = re.compile(rb"\.backward\(")
_DYNAMIC = re.compile(
    rb"import_module|__import__|iter_modules|walk_packages|SourceFileLoader|spec_from_file|LightningCLI|get_obj_from_str|\blocate\("
)
_TARGET = re.compile(rb"(?:_target_|class_path|\btarget)[\"']?\s*[:=]\s*[\"']?(?:[\w-]+\.)+(\w+)")
_MADE = re.compile(rb"_target_[\"']?\s*:\s*[\"']?[\w.]*\b(Trainer)\b")


@dataclass(frozen=True)
class Scanned:
    """The first look at a file.

    Attributes:
        outline: empty where it cannot be parsed.
        opt_outs: arguments that it gives as False, see ``facts.project.Project``.
        is_sound: whether Python can parse it.
    """

    outline: Outline = field(default_factory=Outline)
    opt_outs: frozenset[str] = frozenset()
    is_sound: bool = False


def scan_file(path: str) -> Scanned:
    """Look at one file; what cannot be read or parsed is reported when it is checked."""
    try:
        return scan_source(Path(path).read_bytes(), path)
    except OSError:
        return Scanned()


def scan_source(source: bytes, path: str) -> Scanned:
    """Look at what a file of that name holds."""
    source = python_of(source, path)
    opt_outs = read_opt_outs(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Text.decode(source).text)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        return Scanned(opt_outs=opt_outs)
    may_train, may_evaluate, may_hand = (words.search(source) is not None for words in (_TRAINER, _EVALUATES, _HANDS))
    places = _PLACES.search(source) is not None
    outline = read_outline(tree, may_train=may_train, may_evaluate=may_evaluate, may_hand=may_hand, places=places)
    return Scanned(outline, opt_outs, is_sound=True)


def read_opt_outs(source: bytes) -> frozenset[str]:
    """What a Python, YAML or JSON file switches off, in whatever way; ``Trainer`` where it describes a trainer.

    And whether it has a word of several processes, be it in a comment, a backward pass, or imports what no import
    names; and the classes that it has made.
    """
    found = frozenset(match[1].decode() for match in (*_OPT_OUT.finditer(source), *_MADE.finditer(source)))
    found |= {NAMED + name.decode() for name in _TARGET.findall(source)}
    words = {SEVERAL: _SEVERAL, LOOP: _LOOP, DYNAMIC: _DYNAMIC}
    return found | {word for word, said in words.items() if said.search(source)}


def find_opt_outs(settings: Iterable[Path]) -> frozenset[str]:
    """What files of settings switch off, for what devices they are, and whether they shard."""
    found: frozenset[str] = frozenset()
    for path in settings:
        try:
            source = path.read_bytes()
        except OSError:
            continue
        found |= read_opt_outs(source) | read_set_devices(source)
        found |= frozenset({SHARDED} if _SHARDED.search(source) else ())
    return found


@dataclass
class Scan:
    """The files that are looked at together.

    Attributes:
        paths: by module key, how findings name the file.
        scanned: by module key.
    """

    paths: dict[str, str] = field(default_factory=dict)
    scanned: dict[str, Scanned] = field(default_factory=dict)

    @property
    def outlines(self) -> dict[str, Outline]:
        """By module key."""
        return {key: scanned.outline for key, scanned in self.scanned.items()}

    @property
    def opt_outs(self) -> frozenset[str]:
        """Of all files."""
        return frozenset[str]().union(*(scanned.opt_outs for scanned in self.scanned.values()))


def scan_files(files: Iterable[str], scan_many: Callable[[list[str]], Iterable[Scanned]]) -> Scan:
    """Scan files, then what they import of their project, until nothing is new.

    Args:
        files: as findings name them.
        scan_many: ``scan_file`` for many, in processes or from a cache.
    """
    found = Scan()
    fresh = {module_key(path): path for path in files}
    while fresh:
        found.paths.update(fresh)
        found.scanned.update(zip(fresh, scan_many(list(fresh.values())), strict=True))
        imported = dict.fromkeys(module for key in fresh for module in _imported(key, found.scanned[key].outline))
        fresh = {key: _shown(f"{key}.py") for key in imported if key not in found.scanned}
    return found


def _imported(key: str, outline: Outline) -> Iterable[str]:
    for text in (*outline.targets, *outline.stars):
        module = find_module(key, text)
        if module is not None:
            yield module[0]


def _shown(path: str) -> str:
    """A path as short as the user would write it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path

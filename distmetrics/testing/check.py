"""Judge a metric by the laws: on the shapes that are always tried, and on what hypothesis draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distmetrics.errors import InputError, InputTypeError, LawViolation, MissingDependencyError
from distmetrics.testing.batches import Batch, Shards, as_batch, map_batches
from distmetrics.testing.equality import CLOSE, Equality
from distmetrics.testing.law import Law, Laws
from distmetrics.testing.law_checks.layouts import mesh_of
from distmetrics.testing.law_runner import judged
from distmetrics.testing.laws import DEFAULT, LAYOUTS
from distmetrics.testing.report import Report, listeners
from distmetrics.testing.shards import partitions, shapes
from distmetrics.testing.subject import Sync
from distmetrics.testing.world import Backend

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def check_metric(
    make: Any,
    batches: SearchStrategy[list[Any]] | Sequence[Any],
    *,
    laws: Laws | Law = DEFAULT,
    world_sizes: Sequence[int] = (2, 3),
    sync: Sync = "distmetrics",
    backend: Backend = "threads",
    max_examples: int = 10,
    seed: int = 0,
    layouts: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Judge a metric by the laws of distributed metrics; return what holds and what does not.

    Args:
        make: makes a new metric: a class, or a function without arguments; of torchmetrics,
            torcheval, or any library with an adapter. Or a function of a list of batches that does
            its own collectives and returns a value.
        batches: a list of what ``update`` is called with (tuples, or mappings of named arguments),
            or a hypothesis strategy of such lists, as :mod:`distmetrics.testing.inputs` has them.
        laws: which; the equality is theirs (``laws.DEFAULT.equal(relative(1e-4))``).
        world_sizes: numbers of ranks; the shapes that are always tried add a few.
        sync: whose sync is judged: "distmetrics", or the metric's "own".
        backend: "threads", or "gloo" for real processes, which takes a hundred times as long.
        max_examples: how many examples hypothesis draws: lists of batches, or ways to deal the
            list.
        seed: of what is drawn; the same seed draws the same.
        layouts: meshes, as sizes by the usual names of axes, such as ``{"dp": 2, "tp": 2}``; the
            laws ``laws.LAYOUTS`` are judged on them too then.

    Returns: the report, which is falsy in ``report.ok`` if a law is broken; ``print(report)`` shows
    the smallest case.

    Raises:
        InputTypeError, ConfigurationError: ``make`` or ``batches`` cannot be judged.
        InputError: no law could be judged on any case, most often since ``update`` refuses the
            batches.

    >>> from torchmetrics import SumMetric
    >>> batches = [(torch.tensor([1.0, 2.0]),), (torch.tensor([3.0]),)]
    >>> check_metric(SumMetric, batches, max_examples=2).ok
    True
    """
    chosen = Laws.of(laws)
    if layouts:
        chosen |= LAYOUTS
    for sizes in layouts:
        mesh_of(sizes)  # whose axes have known names
    worlds = tuple(sorted(set(world_sizes)))
    if not worlds or worlds[0] < 1:
        raise InputError(f"world_sizes must be numbers of ranks from 1 on, got {world_sizes!r}")
    cases = _cases(batches, worlds, max_examples, seed, chosen)
    report = judged(
        make, cases, chosen, sync=sync, backend=backend, world_sizes=worlds, layouts=layouts
    )
    if not report.judged and chosen:
        skipped = list(report.skipped.items())[:3]
        reasons = "\n".join(f"  {law}: {why}" for law, why in skipped)
        raise InputError(
            f"no law could be judged of {report.metric}, so nothing is known of it\n{reasons}",
            likely="the batches are not what its update() takes.",
            do="update one by hand with a batch of yours, and see what it says.",
        )
    for listener in tuple(listeners):
        listener(report)
    return report


def assert_distributed(make: Any, batches: Any, **options: Any) -> None:
    """Raise if a metric breaks a law; a whole test in one line.

    Args: as of :func:`check_metric`.

    Raises:
        LawViolation: with the report as its text.

    >>> from torchmetrics import MaxMetric
    >>> assert_distributed(MaxMetric, [(torch.tensor([1.0, 2.0]),)], max_examples=2)
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and the report
    report = check_metric(make, batches, **options)
    if not report.ok:
        raise LawViolation(str(report))


def replay(
    make: Any,
    shards: Sequence[Sequence[Any]],
    *,
    law: Law | Laws,
    sync: Sync = "distmetrics",
    backend: Backend = "threads",
    equality: Equality = CLOSE,
    layouts: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Judge laws on exactly these shards, as the snippet of a violation does.

    Args:
        make: as of :func:`check_metric`.
        shards: for each rank what its updates are called with.
        law: one, or several.
        sync: as of :func:`check_metric`.
        backend: as of :func:`check_metric`.
        equality: when values are the same.
        layouts: as of :func:`check_metric`.

    >>> from distmetrics.testing import laws
    >>> from torchmetrics import SumMetric
    >>> replay(SumMetric, [[(1.0,)], [(2.0,)]], law=laws.RANKS_AGREE).ok
    True
    """
    chosen = Laws.of(law).equal(equality)
    dealt = map_batches(as_batch, shards)
    return judged(
        make,
        [(dealt, chosen)],
        chosen,
        sync=sync,
        backend=backend,
        world_sizes=[len(dealt)],
        shrinks=False,
        layouts=layouts,
    )


def _cases(
    batches: Any,
    worlds: Sequence[int],
    max_examples: int,
    seed: int,
    laws: Laws,
) -> Iterator[tuple[Shards, Iterable[Law]]]:
    """Yield shards, and the laws that are to be judged on them."""
    on_all_shards = [law for law in laws if law.on_all_shards]
    if hasattr(batches, "example") and hasattr(batches, "map"):
        for example in drawn(batches, max_examples, seed):
            first, *others = shapes(_listed(example), worlds).values()
            yield first, laws
            yield from ((shards, on_all_shards) for shards in others)
        return
    listed = _listed(batches)
    for label, shards in shapes(listed, worlds).items():
        is_first = label.startswith("in turn")
        yield shards, laws if is_first else on_all_shards
    for shards in drawn(partitions(listed, worlds), max_examples, seed):
        yield shards, on_all_shards


def _listed(batches: Any) -> list[Batch]:
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable):
        raise InputTypeError(
            "batches must be a list of update arguments, or a hypothesis strategy of such lists, "
            f"got {type(batches).__name__}",
            do="pass [(preds, target), (preds, target)]",
        )
    listed = [as_batch(batch) for batch in batches]
    if not listed:
        raise InputError("batches is empty: there is nothing to judge a metric on")
    return listed


def drawn(strategy: Any, number: int, seed: int) -> list[Any]:
    """Return examples of a hypothesis strategy, the same for the same seed."""
    try:
        import hypothesis
    except ImportError as error:
        raise MissingDependencyError.of("hypothesis", "drawing shards") from error
    examples: list[Any] = []
    settings = hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def keep(example: Any) -> None:
        examples.append(example)

    def draw() -> None:
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(keep)))()  # type: ignore[no-untyped-call]

    # A check may stand in a test that hypothesis runs: it allows none in another on one thread.
    with ThreadPoolExecutor(1) as apart:
        apart.submit(draw).result()
    return examples

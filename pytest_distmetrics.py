"""pytest's door to the testing kit: markers, fixtures and options.

It is no module of the package, which brings torch along: what is behind the door is imported when a
test uses it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from distmetrics.testing.plugin import World

_MARKER = (
    "distributed(world_size=2, backend='threads', faults=(), timeout=60): run the test as every "
    "rank of a world; world_size may be a list of sizes"
)
_KNOWN = {"backend", "faults", "timeout", "world_size"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of distributed tests."""
    group = parser.getgroup("distmetrics", "distributed tests (distmetrics)")
    group.addoption(
        "--distmetrics-backend",
        choices=("threads", "gloo"),
        help="run every distributed test on threads, or on real processes; goes before markers",
    )
    group.addoption(
        "--distmetrics-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="after which a rank that is still busy is stopped, and its stack shown (default: 60)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each world size."""
    sizes = marked(metafunc.definition).get("world_size")
    if isinstance(sizes, list | tuple):
        if "world" not in metafunc.fixturenames:
            metafunc.fixturenames.append("world")
        metafunc.parametrize("world", sizes, indirect=True, ids=lambda size: f"{size} ranks")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """Return a world of ranks.

    ``world.run(fn)`` calls ``fn(comm)`` on every rank, ``world.outcomes(fn)`` tells how each ended.
    """
    from distmetrics.testing.plugin import World

    return World.of(request.node, marked(request.node), getattr(request, "param", None))


@pytest.fixture
def ranks(world: World) -> range:
    """Return the ranks of ``world``."""
    return range(world.size)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Any:
    """Return this rank's communicator, in a test that is marked ``distributed``."""
    if request.node.get_closest_marker("distributed") is None:
        raise pytest.UsageError(
            f"{request.node.nodeid} asks for comm, which each rank has its own of: mark it "
            "@pytest.mark.distributed"
        )
    # Each rank is given its own.
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test with ``@given`` before hypothesis looks at its fixtures."""
    is_given = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if is_given and item.get_closest_marker("distributed") is not None:
        from distmetrics.testing.plugin import refuse_given

        refuse_given(item, marked(item))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test as every rank."""
    if pyfuncitem.get_closest_marker("distributed") is None:
        return None
    from distmetrics.testing.plugin import run_as_ranks

    run_as_ranks(pyfuncitem, marked(pyfuncitem))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ranks that failed."""
    report = yield
    if call.when == "call" and report.failed and item.get_closest_marker("distributed") is not None:
        from distmetrics.testing.plugin import FAILURE

        report.longrepr = item.stash.get(FAILURE, report.longrepr)
    return report


def marked(item: Any) -> dict[str, Any]:
    """Return what a test's markers say together; the nearest one wins."""
    together: dict[str, Any] = {}
    for marker in item.iter_markers("distributed"):
        if len(marker.args) > 1 or set(marker.kwargs) - _KNOWN:
            raise pytest.UsageError(
                f"{item.nodeid}: unknown arguments of @pytest.mark.distributed; it is {_MARKER}"
            )
        own = {"world_size": marker.args[0]} if marker.args else {}
        together = own | marker.kwargs | together
    return together

"""pytest's door to the testing kit: markers, fixtures and options; what is behind them is loaded when a test uses it.

No module of the package: importing that brings torch along, which test runs without distributed tests need not pay for.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from distmetrics.testing.plugin import World

_MARKER = (
    "distributed(world_size=2, backend='threads', faults=(), timeout=60): run the test as every rank of a world; "
    "world_size may be a list of sizes"
)
_KNOWN = {"backend", "faults", "timeout", "world_size"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of distributed tests."""
    group = parser.getgroup("distmetrics", "distributed tests (distmetrics)")
    group.addoption(
        "--distmetrics-backend",
        choices=("threads", "gloo"),
        help="run every distributed test on threads, or on real processes, whatever its marker says",
    )
    group.addoption(
        "--distmetrics-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="after which a rank that is still busy is stopped, and its stack shown (default: 60)",
    )
    group.addoption(
        "--distmetrics-report",
        metavar="FILE.html",
        help="write what check_metric and assert_distributed found in this session to a page",
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
    """A world of ranks: ``world.run(fn)`` calls ``fn(comm)`` on every rank, ``world.outcomes`` tells how each ended."""
    from distmetrics.testing.plugin import World

    return World.of(request.node, marked(request.node), getattr(request, "param", None))


@pytest.fixture
def ranks(world: World) -> range:
    """The ranks of ``world``."""
    return range(world.size)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Any:
    """This rank's communicator, in a test that is marked ``distributed``."""
    if request.node.get_closest_marker("distributed") is None:
        raise pytest.UsageError(
            f"{request.node.nodeid} asks for comm, which each rank has its own of: mark it @pytest.mark.distributed"
        )
    return None  # each rank is given its own


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

        if FAILURE in item.stash:
            report.longrepr = item.stash[FAILURE]
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    """Collect reports, if a page is to be made of them."""
    if session.config.getoption("--distmetrics-report"):
        from distmetrics.testing.plugin import collect_reports

        collect_reports(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page, or hand the reports to the process that will."""
    if session.config.getoption("--distmetrics-report"):
        from distmetrics.testing.plugin import finish_reports

        finish_reports(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """Take the reports of a worker of pytest-xdist."""
    if node.config.getoption("--distmetrics-report"):
        from distmetrics.testing.plugin import take_reports

        take_reports(node.config, node)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say where the page is."""
    if config.getoption("--distmetrics-report"):
        from distmetrics.testing.plugin import REPORTS

        if reports := config.stash.get(REPORTS, []):
            path = config.getoption("--distmetrics-report")
            terminalreporter.write_line(f"distmetrics: {len(reports)} reports in {path}")


def marked(item: Any) -> dict[str, Any]:
    """Return what a test's markers say together: the nearest one wins."""
    given: dict[str, Any] = {}
    for marker in item.iter_markers("distributed"):
        if len(marker.args) > 1 or set(marker.kwargs) - _KNOWN:
            raise pytest.UsageError(
                f"{item.nodeid}: unknown arguments of @pytest.mark.distributed; it is {_MARKER}"
            )
        own = {"world_size": marker.args[0]} if marker.args else {}
        given = own | marker.kwargs | given
    return given

"""A rank's own connection to the job's store, and whether a store that is silent is dead.

Whoever connects to a ``TCPStore`` asks the name server who the other is, and so does the store,
whose one thread answers nobody meanwhile. Where a name server loses a question among many, that
takes five seconds. So a rank makes one connection, not together with the others, and never while
its user waits for that; and a store that is slow is not dead.
"""

import socket
import threading
import time
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

SILENT = 4.0  # seconds after which a silent store is looked into
SILENT_AT_MOST = 60.0  # seconds in which a store that takes connections must answer
_ACCEPTED = 3.0  # seconds that a machine has to take a connection
_APART = 0.05  # seconds between the connections of two ranks
_ALL_APART = 2.0  # seconds over which those of all ranks are spread in a large world


class StoreLink:
    """One rank's connection to the job's store.

    Args:
        store: of the job, which its threads may block.
        rank: of this process in the job.
        world_size: number of ranks of the job.

    Attributes:
        store: the job's.
        delay: seconds after which this rank connects.
        error: what the store said when it failed, or "".

    Raises:
        RuntimeError: the store can't be connected to a second time.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store = store
        self.error = ""
        self._since: float | None = None
        self._refusals: list[bool] | None = None
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        is_tcp = isinstance(store, dist.TCPStore)  # type: ignore[attr-defined]
        self._server = store if is_tcp else None
        self.delay = 0.0 if self._server is None else rank * min(_APART, _ALL_APART / world_size)
        if self._server is None:
            self.store.clone()

    def connect(self) -> Any:
        """Return a connection of its own; torch tries for minutes, where somebody listens.

        Raises:
            RuntimeError: the store can't be reached.
        """
        # Seen first after an error: torch would write a page for each vain try of a job that ends.
        if self.error and self._refuses():
            raise RuntimeError(self.error)
        return self.store.clone()

    def begin(self) -> None:
        """Note that the store is asked something."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """Note that it has answered."""
        self._since, self._refusals, self.error = None, None, ""

    def silent_for(self) -> float:
        """Return for how many seconds it has owed an answer."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def is_dead(self) -> bool:
        """True if nobody listens where it was; a thread tries that from the first call on."""
        if self._server is None:
            return bool(self.error)
        if self._refusals is None:
            refusals = self._refusals = []
            threading.Thread(target=lambda: refusals.append(self._refuses()), daemon=True).start()
        return any(self._refusals)

    def _refuses(self) -> bool:
        if self._server is None:
            return False
        try:
            socket.create_connection((self._server.host, self._server.port), _ACCEPTED).close()
        except OSError:
            return True
        return False

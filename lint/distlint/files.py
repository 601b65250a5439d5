"""Files that are written so that they are never seen half written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, source: bytes) -> None:
    """Replace a file's content so that it is never seen half written; its permissions stay."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(source)
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return what new files are not allowed to everybody; there is no way to ask but to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

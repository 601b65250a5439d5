"""The program of the page on Ray Train, with two real workers, where Ray Train is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks

# ray.train needs pandas and pyarrow, and says so only when it is imported, which takes seconds
MISSING = [name for name in ("ray", "pandas", "pyarrow", "sklearn") if importlib.util.find_spec(name) is None]
PAGE = ROOT / "docs" / "use" / "ray.md"


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_workers_print_the_numbers_of_one_process(tmp_path: Path) -> None:
    (program,) = (block for block in blocks(PAGE.read_text()) if block.file)
    (tmp_path / program.file).write_text(program.code)
    # Ray writes into the home folder
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program.file, "--workers", "2"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in PAGE.read_text()
    assert done.stdout.startswith("597 samples")

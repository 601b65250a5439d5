"""``python -m distmetrics``: see :mod:`distmetrics.cli`."""

import sys

from distmetrics.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m distlint``."""

import sys

from distlint_new.cli import main

if __name__ == "__main__":
    sys.exit(main())

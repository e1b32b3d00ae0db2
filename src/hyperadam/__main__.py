"""``python -m hyperadam``: the command line."""

import sys

from hyperadam.cli import main

if __name__ == "__main__":
    sys.exit(main())

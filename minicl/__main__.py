"""`python -m minicl …` is `minicl …`."""

import sys

from minicl.cli import main

if __name__ == "__main__":
    sys.exit(main())

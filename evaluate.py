"""python evaluate.py … is minicl evaluate …"""

import sys

from minicl.cli import main

if __name__ == "__main__":
    sys.exit(main(command="evaluate"))

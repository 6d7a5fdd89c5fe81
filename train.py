"""python train.py … is minicl train …; with several devices: torchrun --nproc_per_node=N train.py …"""

import sys

from minicl.cli import main

if __name__ == "__main__":
    sys.exit(main(command="train"))

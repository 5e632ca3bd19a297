"""``torchrun --nproc_per_node=2 -m train --data F ...``: one training process."""

from __future__ import annotations

from train.cli import main

if __name__ == "__main__":
    main()

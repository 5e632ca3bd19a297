"""The reference trainer and the loader comparison: an application on top of ``dataloading``.

Contains an ImageNet-style training loop (DDP or FSDP2) for our loader or a peer, and the comparison of loaders. It uses
only the public names of ``dataloading``; nothing imports it.

Start reading with ``options`` (all options), ``trainer`` (the loop), ``loaders`` (one adapter per loader) and
``compare`` (the same training with several loaders).
"""

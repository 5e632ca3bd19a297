"""The reference trainer and the loader comparison: an application on top of ``dataloading``.

Owns: an ImageNet-style training loop (DDP or FSDP2) that can be fed by our loader or by a peer, and the
comparison between them. It uses only the public names of ``dataloading``; nothing imports it.

Where to start reading: ``options`` (what can be chosen), ``trainer`` (the loop), ``loaders`` (where batches come
from), ``compare`` (the same training with several loaders).
"""

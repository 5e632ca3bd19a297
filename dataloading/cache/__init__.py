"""Pages of dataset files, kept by us instead of by the system: in memory, or in a folder of this machine.

From below: `maps` (shared writable maps, holes), `shared` (what processes tell each other), `sources` (where bytes come
from), `stores` and `memory` (where they are kept), `fetchers` (threads), `cache` (who needs what, and what has to go).
"""

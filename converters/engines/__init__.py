"""Where shards are made other than here: one module a kind of cluster, with ``run_shards``."""

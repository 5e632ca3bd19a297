"""Object stores: addresses and clients."""

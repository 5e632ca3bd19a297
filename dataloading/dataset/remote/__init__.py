"""Object stores: addresses, and what speaks to a store."""

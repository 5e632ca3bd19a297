"""Where decoders of the user's own find stored bytes."""

from .base import MemoryContext, MemoryManager
from .os_cache import OSCacheContext, OSCacheManager, ProcessCacheManager

__all__ = ["MemoryContext", "MemoryManager", "OSCacheContext", "OSCacheManager", "ProcessCacheManager"]

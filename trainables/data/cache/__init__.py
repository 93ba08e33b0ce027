"""Cache of arrays that are computed once per node, safe against crashes and concurrent processes.

An entry is a directory `NAME-KEY` with one `.npy` file per array and `entry.json`; KEY is a hash of
the settings, so other settings make another entry. One process, which holds a file lock, fills the
directory `NAME-KEY.partial` chunk by chunk and keeps a journal of checksums. If it dies, the kernel
releases the lock and a later process continues. The directory gets its final name in one rename, so
an entry of that name is complete. Readers map the files read-only, so that all processes of a node
share one copy in the page cache.
"""

from trainables.data.cache.entry import CacheEntry
from trainables.data.cache.open_or_build import (
    count_usable_cores,
    hold_file_lock,
    open_or_build_entry,
)
from trainables.data.cache.rows import DataProgressCallback, RowChunk, RowSpec

__all__ = [
    "CacheEntry",
    "DataProgressCallback",
    "RowChunk",
    "RowSpec",
    "count_usable_cores",
    "hold_file_lock",
    "open_or_build_entry",
]

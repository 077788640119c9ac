"""Local copies of remote roots: complete copies, and caches that are filled by ranged reads of records.

``copies`` and ``download`` copy datasets or their index, ``in_place`` opens a root whose index is in a cache,
``records`` and ``cached_file`` read its records, and ``quota`` limits the size of the cache.
"""

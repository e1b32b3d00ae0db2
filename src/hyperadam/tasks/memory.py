"""What the process does with the memory that a learner's activations leave behind after every step."""

from __future__ import annotations

import ctypes

#: Of glibc's ``malloc.h``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed() -> bool:
    """Let the process keep up to a gigabyte of freed memory for its next allocation, and say whether it will.

    glibc gives large blocks back to the system at once, and a convolutional learner then fetches tens of megabytes anew, page
    by page, at every step: up to a quarter of its time. Other libraries are left as they are. For programs that train, not
    for a library to call on its own.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not there: musl, macOS; no such handle: Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 2**25) and mallopt(_TRIM_THRESHOLD, 2**30))

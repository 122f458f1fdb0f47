# SPDX-License-Identifier: Apache-2.0
"""pagedstash.h for Python, over ctypes: what a job may ask of the library that `pagedstash run` has preloaded.

Optional: a job needs none of it to be paged. Where the library is not preloaded every function does nothing and gives
False or None, so that the same program runs with and without it; `why_not()` says what is missing. Units and meanings
are those of pagedstash.h. Any thread; no function waits for the device. Copy the file, or put its folder on PYTHONPATH.
"""
import contextlib
import ctypes

OK, INACTIVE, INVALID = 0, 1, 2
ENABLED, PLANNED, COMPLETE = 0x1, 0x2, 0x4


class Status(ctypes.Structure):
    """Of the last step that has ended, in this process."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("step", ctypes.c_uint64),  # its number, from 1; 0: none has ended
        ("kept_resident", ctypes.c_uint64),  # groups that stayed in device memory for want of pages
        ("spilled_bytes", ctypes.c_uint64),  # copied to pages in host memory
        ("over_budget", ctypes.c_uint64),  # region instances that had to deliver more rows than there was room for
        ("rows_needed", ctypes.c_uint64),  # the most rows that one had to deliver; 0: no range tells
        ("rows_capacity", ctypes.c_uint64),  # rows that that one had room for
        ("factor_needed", ctypes.c_uint64),  # hundredths: the capacity factor that would have sufficed; 0: not known
    ]

    @property
    def enabled(self):
        """New tensors are taken over."""
        return bool(self.flags & ENABLED)

    @property
    def planned(self):
        """A learned plan is in force."""
        return bool(self.flags & PLANNED)

    @property
    def complete(self):
        """over_budget and rows_needed are final: the step's work on the device is done."""
        return bool(self.flags & COMPLETE)

    def __repr__(self):
        told = {name: getattr(self, name) for name, _ in self._fields_ if name not in ("size", "flags")}
        return f"Status({told}, enabled={self.enabled}, planned={self.planned}, complete={self.complete})"


def _find():
    """The library's functions by name; empty where it is not preloaded."""
    try:
        process = ctypes.CDLL(None)
        found = {name: getattr(process, "pagedstash_" + name)
                 for name in ("status", "enable", "step", "reset", "version")}
    except (AttributeError, OSError):
        return {}
    found["status"].argtypes = [ctypes.POINTER(Status)]
    found["enable"].argtypes = [ctypes.c_int]
    found["version"].restype = ctypes.c_char_p
    return found


_functions = _find()


def loaded():
    """The library is preloaded into this process."""
    return bool(_functions)


def version():
    """Of the library, as text; None where it is not preloaded."""
    return _functions["version"]().decode() if _functions else None


def why_not():
    """Why nothing is paged here; None if something may be."""
    if not _functions:
        return "libpagedstash.so is not preloaded: start the job with `pagedstash run -- COMMAND`"
    if status() is None:
        return "pagedstash passes everything through: PAGEDSTASH_DISABLE is set, or a line on stderr says why"
    return None


def status():
    """The Status of the last step; None where the library is not there or passes everything through."""
    told = Status(size=ctypes.sizeof(Status))
    if not _functions or _functions["status"](ctypes.byref(told)) != OK:
        return None
    return told


def enable(on=True):
    """Takes new tensors over, or leaves them to the job's own allocator; what is out comes back either way. True if it
    took effect."""
    return bool(_functions) and _functions["enable"](1 if on else 0) == OK


@contextlib.contextmanager
def disabled():
    """Within it new tensors are left to the job's own allocator."""
    told = status()
    enable(False)
    try:
        yield
    finally:
        enable(told is None or told.enabled)


def step():
    """A step ends here and the next begins. From the first call on, steps are no longer looked for. Call it where
    nothing of a region is in use: between a backward and the next forward. True if it took effect."""
    return bool(_functions) and _functions["step"]() == OK


def reset():
    """Forgets what was learned of the job's steps. True if it took effect."""
    return bool(_functions) and _functions["reset"]() == OK

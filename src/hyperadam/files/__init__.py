"""The ground floor: files that are there whole or not at all, that know when they are damaged, and
folders with one process at work (``files.lock``, which needs filelock). Everything that the package
writes goes through here."""

from hyperadam.files.atomic import remove_leftovers, write_atomically
from hyperadam.files.checked import Damaged, read_checked, write_checked

__all__ = [
    "Damaged",
    "read_checked",
    "remove_leftovers",
    "write_atomically",
    "write_checked",
]

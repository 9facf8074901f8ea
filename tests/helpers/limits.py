"""Limits that the system keeps, as a small disk would have them."""

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(size):
    """Let no file of this process grow beyond that many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

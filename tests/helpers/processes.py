"""Processes of the operating system, looked at and waited for."""

import subprocess
import time


def children(pid):
    """The processes that a process has started, and those that they have."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    parents = [tuple(map(int, line.split())) for line in listed.stdout.decode().splitlines()]
    found = [child for child, parent in parents if parent == pid]
    return found + [other for child in found for other in children(child)]


def alive(pids):
    """Those of the processes that have not ended; a dead one nobody asked about has."""
    shown = ["ps", "-o", "pid=,stat=", "-p", ",".join(map(str, pids))]
    listed = subprocess.run(shown, capture_output=True, text=True, check=False)
    states = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, state in states if not state.startswith("Z")]


def wait_until(condition, seconds):
    """Wait until a condition holds, and say whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True

r"""Run many commands in a few processes at a time: what fills a machine of many cores.

    python benchmarks/many.py benchmarks/seeds.txt --workers 16 --minutes 20 --log out/seeds

The file has a command a line, of the shell; ``#`` begins a comment, and words in braces stand for
one command each: ``--seed {1,2}``. Commands get one thread each (OMP_NUM_THREADS and its like), and
``python`` is the one that runs this. They are begun in the order of the file, none after
``--minutes``; those that run then are waited for, so that none ends half-way. What a command prints
goes to a file of its own in the folder of ``--log``, whose ``done.txt`` names those that ended
well: the same call again leaves them out. With ``--pin`` every worker keeps to one core.

All that is shared is the result files, and the studies see to it that several processes may add to
one. A Ctrl-C or the signal TERM has the same effect as the end of the minutes.
"""

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# Of the output of a command that failed.
LINES_SHOWN = 5


def read_commands(text: str) -> list[str]:
    """Return the commands of a file, each once, one for each choice of the words in braces."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(command for line in lines if line for command in unfold(line)))


def unfold(line: str) -> list[str]:
    """Return what a line stands for; words of the last braces change fastest.

    >>> unfold("run {a,b} --seed {0,1}")
    ['run a --seed 0', 'run a --seed 1', 'run b --seed 0', 'run b --seed 1']
    """
    # What stands outside braces and what stands in them take turns.
    parts = re.split(r"\{([^{}]*,[^{}]*)\}", line)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(words) for words in itertools.product(*choices)]


class Campaign:
    """Commands that are to be run, and the folder that knows of those that were.

    Args:
        commands: of the shell, in their order.
        log: a folder.
        until: when no further command is begun, by ``time.monotonic``.
    """

    def __init__(self, commands: list[str], log: Path, until: float) -> None:
        log.mkdir(parents=True, exist_ok=True)
        self.done = log / "done.txt"
        known = set(self.done.read_text().splitlines()) if self.done.exists() else set()
        self.left = deque(
            (i, command) for i, command in enumerate(commands) if command not in known
        )
        self.log = log
        self.until = until
        self.ended = self.failed = 0
        self.lock = threading.Lock()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"PATH": path, "PYTHONUNBUFFERED": "1"}
        self.environment = os.environ | dict.fromkeys(THREADS, "1") | own

    def stop(self, *_: object) -> None:
        """Begin no further command."""
        self.until = 0.0

    def work(self, core: int | None) -> None:
        """Run one command after the other.

        Args:
            core: to keep to; None for any.
        """
        if core is not None:
            # Of this thread, and of what it starts.
            os.sched_setaffinity(0, {core})
        while time.monotonic() < self.until:
            with self.lock:
                if not self.left:
                    return
                number, command = self.left.popleft()
            self.run(number, command)

    def run(self, number: int, command: str) -> None:
        """Run one command, and say how it ended."""
        began = time.monotonic()
        path = self.log / f"{number:03d}.log"
        with path.open("w") as output:
            # In a session of its own: a Ctrl-C is for us, who wait for it.
            status = subprocess.run(
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                check=False,
            ).returncode
        seconds = time.monotonic() - began
        with self.lock:
            if status == 0:
                self.ended += 1
                with self.done.open("a") as file:
                    file.write(f"{command}\n")
            else:
                self.failed += 1
            word = "done" if status == 0 else f"failed ({status}, see {path})"
            print(f"{word}, {seconds:.0f} s, {len(self.left)} to begin: {command}", flush=True)
            if status:
                print("\n".join(path.read_text().splitlines()[-LINES_SHOWN:]), flush=True)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, help="a command of the shell a line")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--log", type=Path, default=Path("out/many"))
    parser.add_argument("--pin", action="store_true", help="every worker to a core of its own")
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if asked.workers < 1 or (asked.pin and asked.workers > len(cores)):
        most = f" and at most {len(cores)}, a core each" if asked.pin else ""
        parser.error(f"--workers: expected at least 1{most}, got {asked.workers}")
    commands = read_commands(asked.file.read_text())
    campaign = Campaign(commands, asked.log, time.monotonic() + 60 * asked.minutes)
    print(f"{len(campaign.left)} of {len(commands)} commands to run", flush=True)
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, campaign.stop)
    threads = [
        threading.Thread(target=campaign.work, args=(cores[i] if asked.pin else None,))
        for i in range(asked.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{campaign.ended} done, {campaign.failed} failed, {len(campaign.left)} left", flush=True)
    sys.exit(1 if campaign.failed else 0)


if __name__ == "__main__":
    main()

"""The most memory that some code ever held, mapped pages of files included: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).parents[1]
_TELLING = """
import json
from benchmarks.peaks import peak_gigabytes
print(json.dumps([peak_gigabytes(), told]))
"""


class Found(NamedTuple):
    """The most that the code held, and its variable `told`."""

    gigabytes: float
    told: Any


def found_by(code: str, *words: str) -> Found:
    """Of Python code that has `words` as sys.argv[1:]. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-c", code + _TELLING, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=_ROOT)
    return Found(*json.loads(done.stdout.splitlines()[-1]))


def peak_gigabytes() -> float:
    """The most that this process ever held.

    On Linux ru_maxrss is more: it begins with the most that the process had held which started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024 / 1e9
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9

"""What a folder holds."""

from __future__ import annotations

from pathlib import Path


def bytes_in(folder: Path) -> int:
    """The bytes of all files in a folder and in those below it. One that goes meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total

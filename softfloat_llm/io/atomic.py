"""Writing files and folders so that nothing half-written is ever found under the final name.

Both forms write beside the target, flush to the disk, and rename: an interruption, or a killed process, leaves at
worst a name that begins with a dot, which nobody reads.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


@contextmanager
def new_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write; it takes the place of `path` when the block ends without an error."""
    path = Path(path)
    partial = _partial_name(path)
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """An empty folder to fill; it becomes `path` when the block ends without an error.

    Where `path` is there already, it stays and ours goes; with `replace` it is moved aside, and removed once ours has
    its place. Raises nothing of its own: OSError says what the system refused.
    """
    path = Path(path)
    partial, aside = _partial_name(path), _partial_name(path)
    try:
        partial.mkdir(parents=True)
        yield partial
        if replace and path.is_dir():
            os.rename(path, aside)
        _rename_unless_taken(partial, path)
    finally:
        if aside.is_dir() and not path.exists():
            os.rename(aside, path)
        for leftover in (partial, aside):
            shutil.rmtree(leftover, ignore_errors=True)


def _rename_unless_taken(partial: Path, path: Path) -> None:
    try:
        os.rename(partial, path)
    except OSError:
        if not path.is_dir():
            raise


def _partial_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")

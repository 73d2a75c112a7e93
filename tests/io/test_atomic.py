"""A file or folder appears whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from softfloat_llm.io.atomic import new_file, new_folder


def write_half(path: Path) -> None:
    with new_file(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt


def fill_half(path: Path) -> None:
    with new_folder(path) as folder:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with new_file(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_file_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_half(target)
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fill_half(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_else_made_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with new_folder(target) as folder:
        (folder / "file").write_text("ours")
        target.mkdir()
        (target / "file").write_text("theirs")
    assert (target / "file").read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]

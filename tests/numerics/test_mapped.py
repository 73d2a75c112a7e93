"""Arrays in files: where they lie, and that their memory can be given back without a value changing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from softfloat_llm.numerics.mapped import give_back, place_in_file


def test_a_view_of_a_map_lies_where_the_map_has_it(tmp_path):
    np.arange(100, dtype=np.float32).tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.float32, "r", offset=40, shape=(9, 10))
    for view in (mapped[3:], mapped.T[:, 4:], mapped[2:][:, 5:], np.asarray(mapped)[1:]):
        place = place_in_file(view)
        assert place is not None
        assert place.open().tobytes() == view.tobytes()


def test_weights_are_mapped_in_the_file_where_they_lie(tmp_path):
    written = np.arange(1000, dtype=np.float32)
    written.tofile(tmp_path / "weights")
    mapped = np.asarray(np.memmap(tmp_path / "weights", np.uint8, "r"))[40:3240].view(np.float32).reshape(20, 40).T
    place = place_in_file(mapped)
    assert place is not None
    assert Path(place.path) == tmp_path / "weights"
    np.testing.assert_array_equal(place.open(), mapped)
    assert place.open().strides == mapped.strides
    assert place_in_file(written) is None
    assert place_in_file(np.memmap(tmp_path / "weights", np.float32, "c")) is None  # its changes are its own


def resident_kilobytes(path):
    """How much of a mapped file this process holds in memory, as Linux tells it."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident pages are read from /proc")
@pytest.mark.parametrize("offset", [0, 40, 5000])
def test_memory_is_given_back_and_the_values_stay(tmp_path, offset):
    path = tmp_path / "weights"
    np.arange(1 << 20, dtype=np.float32).tofile(path)
    whole = np.asarray(np.memmap(path, np.uint8, "r", offset=offset))
    rows = whole[:4000000].view(np.float32).reshape(1000, 1000).T
    total = float(rows.astype(np.float64).sum())
    assert resident_kilobytes(path) > 3000
    give_back(rows)
    assert resident_kilobytes(path) < 100
    assert float(rows.astype(np.float64).sum()) == total


def test_what_lies_in_no_file_is_left_alone():
    plain = np.ones(10000)
    give_back(plain)
    give_back(plain[::2])
    assert (plain == 1).all()

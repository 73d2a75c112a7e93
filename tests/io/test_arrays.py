"""Arrays from files: what NumPy writes is read back; what lies about its size, or is a pickle, is refused unread."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.errors import ArrayError
from softfloat_llm.io.arrays import MOST_UNPACKED, read_array, read_arrays, read_tensors
from softfloat_llm.io.safetensors import write_tensors

ARRAYS = {
    "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    "big-endian": np.arange(4, dtype=">f4"),
    "half": np.array([1.5, -0.0], np.float16),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 3), np.float32),
    "ids": np.arange(3),
}


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npy_claiming(shape, data=b"", descr="<f4", version=(1, 0)):
    """A .npy whose header says this shape, whatever follows."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(header)) + header + data


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read_back(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == np.asarray(array).dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_npy_file_is_one_array(tmp_path, name):
    np.save(tmp_path / "a.npy", ARRAYS[name])
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npy")["values"], ARRAYS[name])


def test_two_bytes_without_a_name_are_bf16_and_a_row_is_chosen(tmp_path):
    wide = np.array([[1.0, 0.5], [3.0, -2.0]], ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", wide)
    found = read_array(f"{tmp_path / 'a.npy'}[1]")
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(float).tolist() == [3.0, -2.0]


def test_a_folder_is_all_its_files(tmp_path):
    np.save(tmp_path / "layers.0.norm.input.out.npy", ARRAYS["plain"])
    np.savez(tmp_path / "b.npz", half=ARRAYS["half"])
    write_tensors(tmp_path / "c.safetensors", {"logits": ARRAYS["plain"]})
    (tmp_path / "notes.txt").write_text("no array")
    assert set(read_tensors(tmp_path)) == {"layers.0.norm.input.out", "half", "logits"}
    np.save(tmp_path / "logits.npy", ARRAYS["plain"])
    with pytest.raises(ArrayError, match=r"'logits' stands in logits.npy and in a file before it"):
        read_tensors(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArrayError, match="holds no file of the kind"):
        read_tensors(tmp_path / "empty")


class Bomb:
    """A pickle that makes a file where it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_is_never_read(tmp_path):
    trap = tmp_path / "ran"
    objects = np.array([Bomb(trap)], dtype=object)
    with np.errstate(all="ignore"):
        data = npy_bytes(objects)
    (tmp_path / "a.npy").write_bytes(data)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Bomb(trap)))
    zipped(tmp_path / "c.npz", [("x.npy", data)])
    zipped(tmp_path / "d.npz", [("x.npy", pickle.dumps(Bomb(trap)))])
    trap.unlink(missing_ok=True)
    for name in "ab":
        with pytest.raises(ArrayError):
            read_arrays(tmp_path / f"{name}.npy")
    for name in "cd":
        with pytest.raises(ArrayError):
            read_arrays(tmp_path / f"{name}.npz")
    with pytest.raises(ArrayError, match="Python objects, which would be a pickle"):
        read_arrays(tmp_path / "a.npy")
    assert not trap.exists()


HEADERS = {
    "an array of 8 TB": npy_claiming((1 << 41,), b"\0" * 64),
    "more than 2^63 bytes": npy_claiming((1 << 40, 1 << 40), b"\0" * 64),
    "a negative size": npy_claiming((-2, -8), b"\0" * 64),
    "fewer bytes than are there": npy_claiming((3,), b"\0" * 64),
    "no data": npy_claiming((3,)),
    "a newer version": npy_claiming((16,), b"\0" * 64, version=(4, 0)),
    "no magic": b"PK not a npy",
    "a field": npy_claiming((4,), b"\0" * 64, descr="|S16"),
    "no header": b"\x93NUMPY\x01\x00\xff\xff{",
    "code in the header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 22) + b"__import__('os').abc \n",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_does_not_fit_is_refused_before_memory_is_taken(tmp_path, name):
    (tmp_path / "a.npy").write_bytes(HEADERS[name])
    zipped(tmp_path / "a.npz", [("x.npy", HEADERS[name])])
    tracemalloc.start()
    for path in ("a.npy", "a.npz"):
        with pytest.raises(ArrayError, match=r"Reading .*a\.np"):
            read_arrays(tmp_path / path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


def patched(path, size, offset):
    """A .npz in which the central directory says another size of its first member (24: unpacked, 20: packed)."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + offset
    data[at : at + 4] = struct.pack("<I", size)
    path.write_bytes(data)
    return path


def test_an_archive_that_would_unpack_to_far_more_than_it_holds_is_refused(tmp_path):
    path = zipped(tmp_path / "a.npz", [("x.npy", npy_bytes(np.zeros(1 << 16, np.float32)))], zipfile.ZIP_DEFLATED)
    assert read_arrays(path)["x"].nbytes == 1 << 18
    patched(path, MOST_UNPACKED + 1, 24)
    with pytest.raises(ArrayError, match=r"would unpack to 1073741825\. Write it unpacked"):
        read_arrays(path)


def test_a_member_whose_sizes_are_made_up_is_refused(tmp_path):
    data = npy_bytes(np.arange(64, dtype=np.float32))
    for size, offset in ((1 << 20, 24), (1 << 20, 20), (16, 24)):
        for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with pytest.raises(ArrayError):
                read_arrays(patched(zipped(tmp_path / "a.npz", [("x.npy", data)], how), size, offset))


def test_other_archives_are_refused(tmp_path):
    data = npy_bytes(ARRAYS["plain"])
    with pytest.raises(ArrayError, match=r"no array as numpy\.savez writes them"):
        read_arrays(zipped(tmp_path / "a.npz", [("x.txt", b"text")]))
    with pytest.raises(ArrayError, match=r"no array as numpy\.savez writes them"):
        read_arrays(zipped(tmp_path / "b.npz", [("x.npy", data)], zipfile.ZIP_LZMA))
    with pytest.warns(UserWarning, match="Duplicate"), pytest.raises(ArrayError, match="stands in it 2 times"):
        read_arrays(zipped(tmp_path / "c.npz", [("x.npy", data), ("x.npy", data)]))
    path = zipped(tmp_path / "d.npz", [("x.npy", data)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ArrayError):
        read_arrays(path)
    whole = bytearray(zipped(tmp_path / "e.npz", [("x.npy", data)], zipfile.ZIP_DEFLATED).read_bytes())
    whole[60] ^= 0xFF  # a wrong byte in the packed data: its checksum, or the packing itself
    (tmp_path / "e.npz").write_bytes(whole)
    with pytest.raises(ArrayError):
        read_arrays(tmp_path / "e.npz")

"""S12: bf16 + f32 is f32; a scalar does not promote inside its category; matmul refuses mixed inputs; each its own way.

Every cell of the promotion tables against the library itself: NumPy with ml_dtypes always, PyTorch and JAX where they
are installed. So is what happens to the value of a scalar, for all 65,536 values of bf16 and f16.
"""

from __future__ import annotations

import operator
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from softfloat_llm.errors import FormatError
from softfloat_llm.numerics import ops
from softfloat_llm.numerics.formats import FORMATS, decode, format_of
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.promotion import KINDS, OPS, PYTHON_TYPES, REDUCTIONS, promote, types
from tests.claims import reproduced
from tests.oracle import assert_same

SCALARS = {"bool": True, "int": 3, "float": 0.5}
BINARY = [op for op in OPS if op not in REDUCTIONS]
OPERATORS = {"add": operator.add, "mul": operator.mul, "div": operator.truediv, "matmul": operator.matmul}
NUMPY_NAMES = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}
NAMES_OF_NUMPY = {np.dtype(word): name for name, word in NUMPY_NAMES.items()} | {
    np.dtype("uint64"): "u64", np.dtype("uint32"): "u32"
}  # fmt: skip


def dtype_of(name):
    return format_of(name).dtype if name in FORMATS else np.dtype(NUMPY_NAMES[name])


def name_of(dtype):
    dtype = np.dtype(dtype)
    return NAMES_OF_NUMPY.get(dtype) or format_of(dtype).name


def numpy_library():
    return SimpleNamespace(
        rules="numpy",
        ones=lambda name, shape: np.ones(shape, np.float32).astype(dtype_of(name)),
        name=lambda result: name_of(result.dtype),
        reduced=lambda op, x: getattr(np, op)(x),
    )


def torch_library():
    torch = pytest.importorskip("torch")
    of_name = {
        "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64,
        "e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i64": torch.int64, "i32": torch.int32,
        "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    }  # fmt: skip
    names = {dtype: name for name, dtype in of_name.items()}
    return SimpleNamespace(
        rules="torch",
        ones=lambda name, shape: torch.ones(shape).to(of_name[name]),
        name=lambda result: names[result.dtype],
        reduced=lambda op, x: getattr(torch, op)(x),
        from_codes=lambda name: torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(of_name[name]),
        scalar=lambda value: torch.tensor(value, dtype=torch.float32),
        values=lambda result: result.double().numpy(),
    )


def jax_library():
    jnp = pytest.importorskip("jax.numpy")
    return SimpleNamespace(
        rules="jax",
        ones=lambda name, shape: jnp.ones(shape, dtype_of(name)),
        name=lambda result: name_of(result.dtype),
        reduced=lambda op, x: getattr(jnp, op)(x),
    )


LIBRARIES = {"numpy": numpy_library, "torch": torch_library, "jax": jax_library}


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch), "jax"])
def library(request):
    return LIBRARIES[request.param]()


def told(library, work):
    """(the type of what the work gives, None), or (None, the words of its refusal)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return library.name(work()), None
    except Exception as refusal:
        return None, str(refusal).split("\n")[0]


def assert_told(library, found, work):
    result, says = told(library, work)
    assert found.result == result, (found, says)
    if library.rules == "jax" and says:  # it names the two in either order, and goes on
        assert set(says.split("'")[1:4:2]) == set(found.says.split("'")[1:4:2])
        assert found.says.split(")")[1] in says
    else:
        assert (found.says or None) == says


def is_older(library, names, kinds):
    """NumPy 2.0 takes a Python int for strong beside an ml_dtypes type: bf16 + 3 is f32 there."""
    is_old = library.rules == "numpy" and np.lib.NumpyVersion(np.__version__) < "2.1.0"
    others = [name for name, kind in zip(names, kinds, strict=True) if kind != "python"]
    return is_old and "int" in names and others[0] in ("bf16", "e4m3fn", "e5m2")


def operand(library, name, kind, op):
    if kind == "python":
        return SCALARS[name]
    shape = () if kind == "zero-dim" else (4, 4) if op == "matmul" else (4,)
    return library.ones(name, shape)


def names_of(kind):
    return PYTHON_TYPES if kind == "python" else types()


@pytest.mark.parametrize("op", BINARY)
def test_every_pair_of_types_gives_what_the_library_gives_or_is_refused_in_its_words(library, op):
    pairs = [("tensor", "tensor")] if op == "matmul" else [(a, b) for a in KINDS for b in KINDS]
    count = 0
    for kinds in pairs:
        if kinds == ("python", "python"):
            continue
        for a in names_of(kinds[0]):
            for b in names_of(kinds[1]):
                x, y = (operand(library, n, k, op) for n, k in zip((a, b), kinds, strict=True))
                count += 1
                if is_older(library, (a, b), kinds):
                    continue
                found = promote(a, b, rules=library.rules, kinds=kinds, op=op)
                assert_told(library, found, lambda x=x, y=y: OPERATORS[op](x, y))
    assert count == (144 if op == "matmul" else 4 * 144 + 4 * 36)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_every_reduction_gives_the_type_that_the_library_gives(library, op):
    for a in types():
        x = library.ones(a, (4,))
        assert_told(library, promote(a, rules=library.rules, op=op), lambda x=x: library.reduced(op, x))


# --- what the values are ----------------------------------------------------------------------------------------------

VALUES = (0.1, 0.0884, 1000.7)  # 0.0884 is about 128^-1/2, the scale of heads of 128


def computed(op, codes, promotion, scalar, is_first):
    """The operation in float32, then rounded to the type, with the scalar as the promotion says it enters."""
    x, fmt = decode(codes, promotion.result), promotion.result
    value = round_to(round_to(scalar, "f32"), promotion.scalar_format)
    with np.errstate(all="ignore"):
        if promotion.scalar == "reciprocal":
            inverse = round_to(ops.div(1.0, x, "f32"), fmt).astype(np.float64)
            return round_to(ops.mul(inverse, value, "f32"), fmt)
        operands = (value, x) if is_first else (x, value)
        return round_to(getattr(ops, op)(*operands, "f32"), fmt)


@pytest.mark.torch
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
@pytest.mark.parametrize("kind", ["python", "zero-dim"])
@pytest.mark.parametrize("op", ["add", "mul", "div"])
def test_torch_adds_a_rounded_scalar_and_multiplies_and_divides_by_an_unrounded_one_that_comes_second(fmt, kind, op):
    library, codes = torch_library(), np.arange(1 << 16)
    for scalar in VALUES:
        x, y = library.from_codes(fmt), scalar if kind == "python" else library.scalar(scalar)
        for is_first in (False, True):
            given = library.values(OPERATORS[op](y, x) if is_first else OPERATORS[op](x, y))
            words = [(fmt, "tensor"), ("float" if kind == "python" else "f32", kind)][:: -1 if is_first else 1]
            found = promote(words[0][0], words[1][0], kinds=(words[0][1], words[1][1]), op=op)
            assert found.result == fmt
            assert_same(given, computed(op, codes, found, scalar, is_first))


@pytest.mark.parametrize("op", ["add", "mul", "div"])
def test_numpy_rounds_a_weak_scalar_to_the_array_s_type_first(op):
    codes = np.arange(1 << 16)
    found = promote("f16", "float", rules="numpy", kinds=("tensor", "python"), op=op)
    assert (found.result, found.scalar, found.scalar_format) == ("f16", "rounded", "f16")
    for scalar in VALUES:
        with np.errstate(all="ignore"):
            given = OPERATORS[op](codes.astype(np.uint16).view(np.float16), scalar)
        assert_same(given, computed(op, codes, found, scalar, is_first=False))


def test_4096_ones_in_bf16_add_up_to_256_where_the_accumulator_is_bf16():
    assert np.ones(4096, dtype_of("bf16")).sum() == 256
    assert promote("bf16", rules="numpy", op="sum").accumulator == "bf16"
    assert np.ones(4096, np.float16).sum() == 4096
    assert np.ones((4096, 2), np.float16).sum(axis=0).tolist() == [2048, 2048]
    assert promote("f16", rules="numpy", op="sum").accumulator == "f32 along a contiguous row, f16 across rows"


@pytest.mark.torch
def test_4096_ones_in_bf16_add_up_to_4096_where_it_is_f32():
    library = torch_library()
    assert float(library.ones("bf16", (4096,)).sum()) == 4096
    assert promote("bf16", rules="torch", op="sum").accumulator == "f32"


# --- the claim, in the words of the article ---------------------------------------------------------------------------


def test_s12_bf16_and_f32_make_f32_but_a_scalar_does_not_promote_inside_its_category(tiny_bench):
    reproduced(tiny_bench, "S12")
    for rules in ("torch", "numpy", "jax"):
        assert promote("bf16", "f16", rules=rules).result == "f32"
    assert promote("i64", "float", kinds=("tensor", "python")).result == "f32"  # of a higher category it does


def test_s12_the_same_line_has_other_types_elsewhere():
    zero_dim = [promote("bf16", "f32", rules=r, kinds=("tensor", "zero-dim")).result for r in ("torch", "jax", "numpy")]
    assert zero_dim == ["bf16", "f32", "f32"]
    python = [promote("bf16", "float", rules=r, kinds=("tensor", "python")).result for r in ("torch", "jax", "numpy")]
    assert python == ["bf16", "bf16", "f32"]
    assert [promote("bf16", "bf16", rules=r, op="matmul").result for r in ("torch", "jax", "numpy")] == [
        "bf16", "bf16", "f32"
    ]  # fmt: skip


def test_s12_matmul_refuses_mixed_inputs_in_torch_and_8_bit_floats_promote_nowhere_but_in_numpy():
    assert promote("bf16", "f32", op="matmul").says == (
        "expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float"
    )
    assert promote("fp8", "bf16").says == (
        "Promotion for Float8 Types is not supported, attempted to promote Float8_e4m3fn and BFloat16"
    )
    assert promote("fp8", "bf16", rules="jax").is_refused
    assert promote("fp8", "bf16", rules="numpy").result == "f32"


@pytest.mark.parametrize(
    ("words", "options", "hint"),
    [
        (("bf61", "f32"), {}, "Did you mean 'bf16'"),
        (("e5m7", "f32"), {}, "promotion is known of"),
        (("bf16", "f32"), {"rules": "tensorflow"}, "Known: torch, numpy, jax"),
        (("bf16", "half"), {"op": "pow"}, "Known: add"),
        (("bf16",), {}, "two types"),
        (("bf16", "f32"), {"op": "sum"}, "one type"),
        (("int", "float"), {"kinds": ("python", "python")}, "take a tensor"),
        (("bf16", "f32"), {"kinds": ("tensor", "python")}, "a Python scalar is a bool"),
        (("bf16", "f32"), {"kinds": ("tensor", "zero-dim"), "op": "matmul"}, "two tensors with dimensions"),
    ],
)
def test_what_cannot_be_asked_is_said(words, options, hint):
    with pytest.raises(FormatError, match=f"(?i){hint}"):
        promote(*words, **options)

"""One operation of a model by itself: arrays and the words of its site in, an array out.

What a forward pass does at a site, for those who have only the inputs and the output of that one operation. The words
are those of a recipe (`acc=f32`, `form=weight-then-round`). Start reading at `OPERATIONS` and `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from softfloat_llm.errors import ArrayError, nearest
from softfloat_llm.llama import attention, blocks
from softfloat_llm.llama.config import Config
from softfloat_llm.llama.rope import rope_table
from softfloat_llm.llama.softmax import softmax
from softfloat_llm.llama.taps import stored
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import Array
from softfloat_llm.numerics.precision import Precision, precision_of_keys
from softfloat_llm.site_specs import Setting, SiteSpec, site_spec
from softfloat_llm.sites import SITES

Arrays = Mapping[str, Array]
Words = Mapping[str, str]
OUT = "out"
TABLE = "table."
"""The beginning of those words of `rope` that are about its table of cosines."""


@dataclass(frozen=True)
class Operation:
    """An operation: the arrays that it takes, by name, and what it does with them under some words.

    `cut(arrays, rows, columns)` takes some rows (and columns, where it has any) of the inputs and of `out`; `rows` and
    `columns` are how many there are, and `terms` how many terms each element of the output sums (1 where it sums none).
    """

    name: str
    what: str
    takes: tuple[str, ...]
    may_take: tuple[str, ...]
    site: str | None
    run: Callable[[Arrays, Words], Array]
    shape: Callable[[Arrays], Shape]
    cut: Callable[[Arrays, Array, Array], dict[str, Array]]


@dataclass(frozen=True)
class Shape:
    """How many rows and columns of results an operation has, the terms of each sum, and the shape of its output."""

    rows: int
    columns: int
    terms: int
    out: tuple[int, ...]

    @property
    def work(self) -> int:
        """About how many products or elementwise steps it is."""
        return self.rows * self.columns * self.terms


def operation_of(name: str) -> Operation:
    """The operation of a name. Raises ArrayError, with the nearest."""
    if name not in OPERATIONS:
        raise ArrayError(f"Unknown operation {name!r}.{nearest(name, OPERATIONS)} Known: {', '.join(OPERATIONS)}.")
    return OPERATIONS[name]


def evaluate(name: str, arrays: Arrays, words: Words) -> Array:
    """What an operation gives under these words: the values of its output's format, in the shape of `Shape.out`.

    Operands are stored first: rounded once to `storage` where they do not lie in it. Raises WordError for words that
    have no meaning, ArrayError for arrays that do not fit each other.
    """
    operation = operation_of(name)
    check_arrays(operation, arrays)
    return operation.run(arrays, words)


def check_arrays(operation: Operation, arrays: Arrays) -> Shape:
    """The shape of an operation on these arrays. Raises ArrayError where one is missing, unknown or does not fit."""
    known = (*operation.takes, *operation.may_take, OUT)
    for name in arrays:
        if name not in known:
            raise ArrayError(
                f"{operation.name} takes no array {name!r}.{nearest(name, known)} It takes {_listed(operation)}."
            )
    for name in operation.takes:
        if name not in arrays:
            raise ArrayError(f"{operation.name} needs an array {name!r}: it takes {_listed(operation)}.")
    shape = operation.shape(arrays)
    if OUT in arrays and arrays[OUT].shape != shape.out:
        given = ", ".join(f"{name} {arrays[name].shape}" for name in known[:-1] if name in arrays)
        raise ArrayError(f"{operation.name} of {given} gives the shape {shape.out}; out has {arrays[OUT].shape}.")
    return shape


def _listed(operation: Operation) -> str:
    optional = [f"{name} (optional)" for name in operation.may_take]
    return ", ".join([*operation.takes, *optional])


# --- words ------------------------------------------------------------------------------------------------------------


def precision(words: Words) -> Precision:
    """The stages that words mean; a word that is no stage has no meaning here."""
    return _precision(tuple(words.items()))


@lru_cache(maxsize=4096)
def _precision(words: tuple[tuple[str, str], ...]) -> Precision:
    return precision_of_keys(dict(words))


def spec(site: str, words: Words) -> SiteSpec:
    """What words mean at a site of a model."""
    return _spec(site, tuple(words.items()))


@lru_cache(maxsize=4096)
def _spec(site: str, words: tuple[tuple[str, str], ...]) -> SiteSpec:
    return site_spec(SITES[site], {key: Setting(site, key, word) for key, word in words}, ())


# --- sums and products ------------------------------------------------------------------------------------------------


def _fit(holds: bool, name: str, arrays: Arrays, expected: str) -> None:
    if not holds:
        found = ", ".join(f"{key} {array.shape}" for key, array in arrays.items() if key != OUT)
        raise ArrayError(f"{name} takes {expected}; found {found}.")


def _run_sum(arrays: Arrays, words: Words) -> Array:
    at = precision(words)
    return reduce.sum_stages(stored(arrays["x"], at.storage, at), at, init=arrays.get("init")).out


def _shape_sum(arrays: Arrays) -> Shape:
    x = arrays["x"]
    _fit(x.ndim >= 1, "sum", arrays, "x (..., K)")
    return Shape(prod(x.shape[:-1]), 1, x.shape[-1], x.shape[:-1])


def _cut_sum(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    return _some_rows(arrays, rows, {"x": 1}, arrays["x"].shape[:-1])


def _run_dot(arrays: Arrays, words: Words) -> Array:
    at = precision(words)
    a, b = (stored(arrays[name], at.storage, at) for name in "ab")
    return reduce.dot_stages(a, b, at, init=arrays.get("init")).out


def _shape_dot(arrays: Arrays) -> Shape:
    a, b = arrays["a"], arrays["b"]
    expected = "a (..., K) and b (..., K), of one last axis"
    _fit(min(a.ndim, b.ndim) >= 1 and a.shape[-1:] == b.shape[-1:], "dot", arrays, expected)
    try:
        out = np.broadcast_shapes(a.shape, b.shape)[:-1]
    except ValueError:
        _fit(False, "dot", arrays, expected)
        raise
    return Shape(prod(out), 1, a.shape[-1], out)


def _cut_dot(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    return _some_rows(arrays, rows, {"a": 1, "b": 1}, _shape_dot(arrays).out)


def _some_rows(arrays: Arrays, rows: Array, inner: Mapping[str, int], outer: tuple[int, ...]) -> dict[str, Array]:
    """Rows of arrays whose leading axes broadcast to `outer`; `inner`: how many axes are not of the rows."""
    found = {}
    for name, array in arrays.items():
        keep = inner.get(name, 0)
        tail = array.shape[array.ndim - keep :]
        found[name] = np.broadcast_to(array, (*outer, *tail)).reshape(prod(outer), *tail)[rows]
    return found


def _run_matmul(arrays: Arrays, words: Words) -> Array:
    at = precision(words)
    a, b = (stored(arrays[name], at.storage, at) for name in "ab")
    return reduce.matmul_stages(a, b, at, init=arrays.get("init")).out


def _shape_matmul(arrays: Arrays) -> Shape:
    a, b = arrays["a"], arrays["b"]
    _fit(a.ndim == b.ndim == 2 and a.shape[1:] == b.shape[:1], "matmul", arrays, "a (M, K) and b (K, N)")
    return Shape(a.shape[0], b.shape[1], a.shape[1], (a.shape[0], b.shape[1]))


def _cut_matmul(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    cut = {"a": arrays["a"][rows], "b": arrays["b"][:, columns]}
    whole = {n: np.broadcast_to(x, _shape_matmul(arrays).out) for n, x in arrays.items() if n not in cut}
    return cut | {name: x[rows][:, columns] for name, x in whole.items()}


def _run_linear(arrays: Arrays, words: Words) -> Array:
    site = spec("lm_head", words)
    x, weight = arrays["x"], stored(arrays["weight"], site.storage, site.precision)
    bias = None if "bias" not in arrays else stored(arrays["bias"], site.storage, site.precision)
    return blocks.linear(x, weight, site, bias=bias).out


def _shape_linear(arrays: Arrays) -> Shape:
    x, weight = arrays["x"], arrays["weight"]
    bias = arrays.get("bias", np.empty(weight.shape[:1]))
    is_product = x.ndim == weight.ndim == 2 and x.shape[1:] == weight.shape[1:]
    is_fit = is_product and bias.shape == weight.shape[:1]
    _fit(is_fit, "linear", arrays, "x (T, K), weight (N, K) and a bias (N,)")
    return Shape(x.shape[0], weight.shape[0], x.shape[1], (x.shape[0], weight.shape[0]))


def _cut_linear(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    cut = {"x": arrays["x"][rows], "weight": arrays["weight"][columns]}
    cut |= {"bias": arrays["bias"][columns]} if "bias" in arrays else {}
    return cut | ({OUT: arrays[OUT][rows][:, columns]} if OUT in arrays else {})


# --- norm, softmax, silu ----------------------------------------------------------------------------------------------


def _run_norm(arrays: Arrays, words: Words) -> Array:
    """`residual` (T, D) is added first: what is normalised is then the stored sum, or the unrounded one (takes=...)."""
    own = {key: word for key, word in words.items() if key != "eps"}
    site = spec("norm.input", own)
    x, unrounded = arrays["x"], None
    if "residual" in arrays:
        stream = spec("attn.residual", {"storage": words["storage"], "output": words["storage"]})
        unrounded = blocks.unrounded_residual(arrays["residual"], x, stream)
        x = blocks.residual(arrays["residual"], x, stream).out
    eps = arrays["eps"].item() if "eps" in arrays else float(words["eps"])
    return blocks.rms_norm(x, arrays["weight"], site, eps, unrounded=unrounded).out


def _shape_norm(arrays: Arrays) -> Shape:
    x, weight = arrays["x"], arrays["weight"]
    is_fit = x.ndim == 2 and weight.shape == x.shape[1:] and arrays.get("residual", x).shape == x.shape
    is_fit = is_fit and arrays.get("eps", np.zeros(())).size == 1
    _fit(is_fit, "norm", arrays, "x (T, D), weight (D,), one number eps, and a residual (T, D)")
    return Shape(x.shape[0], 1, x.shape[1], x.shape)


def _cut_norm(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    return {name: x[rows] if name in ("x", "residual", OUT) else x for name, x in arrays.items()}


def _run_softmax(arrays: Arrays, words: Words) -> Array:
    """Every row sees all its elements."""
    x = arrays["x"]
    taps, _ = softmax(x.reshape(1, -1, x.shape[-1]), spec("attn.softmax", words))
    return taps.out.reshape(x.shape)


def _run_silu(arrays: Arrays, words: Words) -> Array:
    return blocks.silu(arrays["x"], spec("mlp.act", words)).out


def _shape_rows(name: str) -> Callable[[Arrays], Shape]:
    def shape(arrays: Arrays) -> Shape:
        x = arrays["x"]
        _fit(x.ndim >= 1, name, arrays, "x (..., N)")
        return Shape(prod(x.shape[:-1]), 1, max(1, x.shape[-1]), x.shape)

    return shape


def _cut_rows(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    return {name: x.reshape(-1, x.shape[-1])[rows] for name, x in arrays.items()}


_VECTOR = 16  # elements: functions by vectors of so many look at whole ones, and otherwise at what is left over


def _shape_elements(name: str) -> Callable[[Arrays], Shape]:
    def shape(arrays: Arrays) -> Shape:
        x = arrays["x"]
        _fit(x.ndim >= 1, name, arrays, "x (..., N)")
        return Shape(prod(x.shape[:-1]), -(-x.shape[-1] // _VECTOR), _VECTOR, x.shape)

    return shape


def _cut_elements(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    """Vectors of elements along the last axis; a last one that is not whole stays the last."""
    length = arrays["x"].shape[-1]
    chosen = (columns[:, None] * _VECTOR + np.arange(_VECTOR)).reshape(-1)
    chosen = chosen[chosen < length]
    return {name: x.reshape(-1, length)[rows][:, chosen] for name, x in arrays.items()}


# --- rope -------------------------------------------------------------------------------------------------------------


def _run_rope(arrays: Arrays, words: Words) -> Array:
    """Words that begin with `table.` are about the table, where it is not given."""
    site = spec("attn.rope", {key: word for key, word in words.items() if not key.startswith(TABLE)})
    cos, sin = _table(arrays, {k.removeprefix(TABLE): w for k, w in words.items() if k.startswith(TABLE)})
    return attention.rotate(arrays["x"], cos, sin, site).out


def _table(arrays: Arrays, words: Words) -> tuple[Array, Array]:
    """cos and sin (T, C/2): as given, or made of positions and theta."""
    half = arrays["x"].shape[-1] // 2
    if "cos" in arrays:
        return _once(arrays["cos"], half), _once(arrays["sin"], half)
    theta = arrays["theta"].item() if "theta" in arrays else 10000.0
    config = Config(1, 2 * half, 1, 1, 1, 1, 2 * half, 1e-5, theta, 1 << 30, True)
    out = rope_table(arrays["positions"], config, spec("rope.table", words)).out
    return out[:, :half], out[:, half:]


def _once(table: Array, half: int) -> Array:
    """The columns of a table (T, C/2), or (T, C) that holds each twice: one half after the other, or side by side."""
    if table.shape[-1] == half:
        return table
    is_side_by_side = np.array_equal(table[:, ::2], table[:, 1::2], equal_nan=True)
    return table[:, ::2] if is_side_by_side else table[:, :half]


def _shape_rope(arrays: Arrays) -> Shape:
    x = arrays["x"]
    expected = "x (T, H, C) with C even, and cos, sin (T, C/2) or (T, C); or positions (T,) and one number theta"
    tables = [arrays[name] for name in ("cos", "sin") if name in arrays]
    is_fit = x.ndim == 3 and x.shape[-1] % 2 == 0 and (len(tables) == 2 or ("positions" in arrays and not tables))
    is_fit = is_fit and all(t.shape in ((len(x), x.shape[-1] // 2), (len(x), x.shape[-1])) for t in tables)
    is_fit = is_fit and arrays.get("positions", np.zeros(len(x) if x.ndim else 0)).shape == x.shape[:1]
    _fit(is_fit and arrays.get("theta", np.zeros(())).size == 1, "rope", arrays, expected)
    return Shape(x.shape[0], 1, x.shape[1] * x.shape[2], x.shape)


def _cut_rope(arrays: Arrays, rows: Array, columns: Array) -> dict[str, Array]:
    return {name: x if name == "theta" else x[rows] for name, x in arrays.items()}


OPERATIONS: dict[str, Operation] = {
    op.name: op
    for op in (
        Operation("sum", "the sum of x over its last axis", ("x",), ("init",), None, _run_sum, _shape_sum, _cut_sum),
        Operation(
            "dot", "the sum of a b over the last axis", ("a", "b"), ("init",), None, _run_dot, _shape_dot, _cut_dot
        ),
        Operation(
            "matmul", "a (M, K) times b (K, N)", ("a", "b"), ("init",), None, _run_matmul, _shape_matmul, _cut_matmul
        ),
        Operation(
            "linear", "x (T, K) times weight (N, K) transposed, + bias", ("x", "weight"), ("bias",), "lm_head",
            _run_linear, _shape_linear, _cut_linear,
        ),
        Operation(
            "norm", "RMSNorm of x (T, D), or of residual + x", ("x", "weight"), ("eps", "residual"), "norm.input",
            _run_norm, _shape_norm, _cut_norm,
        ),
        Operation(
            "rope", "rotation of x (T, H, C)", ("x",), ("cos", "sin", "positions", "theta"), "attn.rope",
            _run_rope, _shape_rope, _cut_rope,
        ),
        Operation(
            "softmax", "softmax over the last axis", ("x",), (), "attn.softmax", _run_softmax, _shape_rows("softmax"),
            _cut_rows,
        ),
        Operation(
            "silu", "x / (1 + exp(-x))", ("x",), (), "mlp.act", _run_silu, _shape_elements("silu"), _cut_elements
        ),
    )
}  # fmt: skip


def operands(operation: Operation, arrays: Arrays) -> dict[str, Array]:
    """The inputs that lie in the storage format: all but tables, positions and single numbers."""
    apart = ("init", "eps", "positions", "theta", "cos", "sin", OUT)
    return {name: array for name, array in arrays.items() if name not in apart}

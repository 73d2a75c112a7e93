"""The layers of design.md, section 2, read from the source: who may import whom, and the two name bans.

A folder, or a module beside the folders, has a rank, and imports lower ranks only. Outside `numerics/` there is no
hidden accumulator (a sum, mean or product of arrays that is not our own `reduce`), and no narrowing by `astype`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = "softfloat_llm"
ROOT = Path(__file__).parents[1] / PACKAGE

RANKS = {
    "errors": 0, "numerics": 1,
    "conditions": 2, "site_options": 2, "site_specs": 2, "sites": 2, "recipe_files": 2, "recipe": 2,
    "trace": 2, "promotion": 2, "digests": 2,
    "refusals": 3, "site_meanings": 3,
    "llama": 3, "io": 3, "tiny": 3,
    "prompts": 4, "runs": 4, "batches": 4, "operations": 4, "site_runs": 4, "audit": 4,
    "analysis": 5, "live": 5, "sweeps": 5, "vectors": 5, "report": 6,
    "lessons": 6, "claims": 6, "cli": 7, "__init__": 8, "__main__": 8,
}  # fmt: skip
SIDEWAYS = {
    ("recipe", "recipe_files"),
    ("recipe", "sites"),
    ("recipe", "site_specs"),
    ("site_specs", "conditions"),
    ("site_specs", "site_options"),
    ("site_specs", "sites"),
    ("sites", "site_options"),
    ("io", "llama"),
    ("io", "tiny"),
    ("runs", "prompts"),
    ("site_runs", "runs"),
    ("batches", "runs"),
    ("batches", "prompts"),
    ("live", "analysis"),
    ("sweeps", "analysis"),
    ("lessons", "report"),
    ("vectors", "analysis"),
    ("__main__", "__init__"),
}  # equal ranks, this way only
NEVER = {("llama", "io"), ("analysis", "llama")}
IN_NUMERICS = [
    "formats", "exact", "stochastic", "modes", "carriers", "rounding", "ulps", "ops", "elementwise", "enclosures",
    "approximations", "special_values", "functions", "glibc", "torch_functions", "mlx", "engine_functions", "trees",
    "adders", "mkl_orders", "order_text", "orders", "precision", "fused", "extents", "operands", "accumulate",
    "native_sums", "partials", "scaled", "side_by_side", "stored_rows", "threads", "einsum_loops", "tiles",
    "underflow_rounding", "steps", "narrow_steps", "narrow_in_float32", "masked_steps", "paths", "small_products",
    "exact_products", "compiled_instructions", "compiled_widening", "compiled_loops", "compiled", "kernels", "mapped",
    "workers", "crew", "reduce",
]  # fmt: skip

HIDDEN_SUMS = {
    "sum", "mean", "dot", "matmul", "einsum", "vdot", "inner", "tensordot", "vecdot", "matvec", "vecmat", "cumsum",
    "average", "nansum", "nanmean", "std", "var",
}  # fmt: skip
EXACT_TYPES = {
    "float64",
    "bool",
    "bool_",
    "int",
    "float",
    "object",
    *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)),
}
NO_EMULATION = {
    "tiny/train.py": "it trains in PyTorch; nothing in it is an emulated value",
    "live/torch_kernels.py": "it asks PyTorch's own sums, to find their order; nothing in it is an emulated value",
}
ONE_ROUNDING = {"io/fetch.py": "float32 to bf16 by ml_dtypes rounds once; each tensor's sha256 is checked"}

SOURCES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))
EMULATING = [path for path in SOURCES if not path.startswith("numerics/") and path not in NO_EMULATION]


def tree_of(path):
    return ast.parse((ROOT / path).read_text(), path)


def imported(path):
    """(module parts below the package, line) of every import of the package, inside functions too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, *parts = name.split(".")
            if head == PACKAGE and parts:
                yield parts, node.lineno


def layer_of(path):
    return path.split("/")[0].removesuffix(".py")


@pytest.mark.parametrize("path", SOURCES)
def test_a_module_imports_lower_ranks_only(path):
    layer = layer_of(path)
    assert layer in RANKS, f"{path}: give {layer!r} a rank in tests/test_layers.py, and its place in the design"
    for parts, line in imported(path):
        # what has no rank is a public name of the package itself, as in `from softfloat_llm import simulate`
        target = parts[0] if parts[0] in RANKS else "__init__"
        allowed = target == layer or RANKS[target] < RANKS[layer] or (layer, target) in SIDEWAYS
        assert allowed, f"{path}:{line}: {layer} (rank {RANKS[layer]}) imports {target} (rank {RANKS[target]})"
        assert (layer, target) not in NEVER, f"{path}:{line}: {layer} never imports {target}"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.startswith("numerics/") and p != "numerics/__init__.py"])
def test_a_module_of_numerics_imports_earlier_ones_only(path):
    name = Path(path).stem
    assert name in IN_NUMERICS, f"{path}: give it its place in the order of tests/test_layers.py"
    for parts, line in imported(path):
        if parts[0] == "numerics":
            assert IN_NUMERICS.index(parts[1]) < IN_NUMERICS.index(name), f"{path}:{line}: imports {parts[1]}"


def hidden_sums(tree):
    """(line, what) of every sum or product of arrays whose order and accumulator NumPy chooses."""
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}.numerics")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
            yield node.lineno, "@"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "numpy":
            yield from ((node.lineno, f"import {a.name}") for a in node.names if a.name in HIDDEN_SUMS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_ours = isinstance(node.func.value, ast.Name) and node.func.value.id == "reduce" and "reduce" in ours
            is_of_ufunc = node.func.attr in ("reduce", "accumulate") and isinstance(node.func.value, ast.Attribute)
            is_sum = node.func.attr in HIDDEN_SUMS or (is_of_ufunc and node.func.value.attr in ("add", "multiply"))
            if is_sum and not is_ours:
                yield node.lineno, f".{node.func.attr}("


def narrowings(tree):
    """(line, what) of every `astype` to something other than float64, an integer or a bool."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
            target = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "dtype"), None)
            name = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}.get(type(target))
            word = getattr(target, name) if name else None
            if word not in EXACT_TYPES:
                yield node.lineno, f".astype({ast.unparse(target) if target else ''})"


@pytest.mark.parametrize("path", EMULATING)
def test_no_sum_outside_numerics_hides_its_accumulator_and_order(path):
    found = [f"{path}:{line}: {what}" for line, what in hidden_sums(tree_of(path))]
    assert not found, f"{found}: use numerics.reduce, which takes a Precision (count with np.count_nonzero)"


@pytest.mark.parametrize("path", EMULATING)
def test_no_astype_outside_numerics_narrows(path):
    found = [f"{path}:{line}: {what}" for line, what in narrowings(tree_of(path)) if path not in ONE_ROUNDING]
    assert not found, f"{found}: use round_to to round, carriers.carry to move values to their carrier, widen to widen"


@pytest.mark.parametrize(
    ("code", "is_hidden"),
    [
        ("a @ b", True), ("a @= b", True), ("x.sum(-1)", True), ("np.sum(x)", True), ("np.einsum('ij,jk', a, b)", True),
        ("np.add.reduce(x)", True), ("from numpy import dot", True), ("(x != y).mean()", True),
        ("reduce.sum(x, at)", True),
        ("from softfloat_llm.numerics import reduce\nreduce.sum(x, at)", False), ("sum(len(t) for t in texts)", False),
        ("from softfloat_llm.numerics.reduce import dot\ndot(a, b, at)", False), ("np.add(x, y)", False),
        ("from softfloat_llm.numerics import reduce\nx.sum()", True), ("@decorator\ndef f(): ...", False),
    ],
)  # fmt: skip
def test_the_ban_on_hidden_sums_sees_what_it_should(code, is_hidden):
    assert bool(list(hidden_sums(ast.parse(code)))) == is_hidden


@pytest.mark.parametrize(
    ("code", "is_narrowing"),
    [
        ("x.astype(np.float16)", True), ("x.astype(dtype=bfloat16)", True), ("x.astype('float32')", True),
        ("x.astype(fmt.dtype)", True), ("x.astype(float)", False), ("x.astype(np.float64)", False),
        ("x.astype('float64')", False), ("x.astype(np.uint16)", False), ("x.astype(bool)", False),
        ("x.astype(int)", False),
    ],
)  # fmt: skip
def test_the_ban_on_narrowing_sees_what_it_should(code, is_narrowing):
    assert bool(list(narrowings(ast.parse(code)))) == is_narrowing


def test_the_exceptions_still_exist():
    assert set(NO_EMULATION) | set(ONE_ROUNDING) <= set(SOURCES)
    for path in ONE_ROUNDING:
        assert list(narrowings(tree_of(path)))

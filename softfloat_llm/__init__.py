"""softfloat_llm: a software-float emulator of a Llama forward pass, in pure NumPy. Same inputs, same recipe, same bits.

    import softfloat_llm as sf
    run = sf.simulate("The capital of France is", recipe=sf.Recipe(storage="bf16", acc="f16"))

Each public name is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softfloat_llm.analysis.compare import compare
    from softfloat_llm.analysis.comparison import Comparison
    from softfloat_llm.errors import SoftfloatError
    from softfloat_llm.numerics.formats import Format, decode, encode, format_of
    from softfloat_llm.numerics.ops import add, div, fma, mul, sqrt, sub
    from softfloat_llm.numerics.orders import Order
    from softfloat_llm.numerics.precision import Precision
    from softfloat_llm.numerics.reduce import dot, matmul, sum
    from softfloat_llm.numerics.rounding import round_to
    from softfloat_llm.numerics.ulps import ulp
    from softfloat_llm.recipe import Recipe
    from softfloat_llm.runs import Run, simulate

_HOMES = {
    "analysis.compare": ("compare",),
    "analysis.comparison": ("Comparison",),
    "errors": ("SoftfloatError",),
    "numerics.formats": ("Format", "decode", "encode", "format_of"),
    "numerics.ops": ("add", "div", "fma", "mul", "sqrt", "sub"),
    "numerics.orders": ("Order",),
    "numerics.precision": ("Precision",),
    "numerics.reduce": ("dot", "matmul", "sum"),
    "numerics.rounding": ("round_to",),
    "numerics.ulps": ("ulp",),
    "recipe": ("Recipe",),
    "runs": ("Run", "simulate"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Comparison", "Format", "Order", "Precision", "Recipe", "Run", "SoftfloatError", "add", "compare", "decode", "div",
    "dot", "encode", "fma", "format_of", "matmul", "mul", "round_to", "simulate", "sqrt", "sub", "sum", "ulp",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

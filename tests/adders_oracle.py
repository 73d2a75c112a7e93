"""Multi-operand adders in exact fractions, one dot product at a time: what the parameters of a unit mean, in words.

Only the parameters (`adders.Adder`) and `round_exact` are the package's; no array code.
"""

from __future__ import annotations

import math
from fractions import Fraction

from softfloat_llm.numerics.exact import floor_log2, round_exact
from softfloat_llm.numerics.formats import f32, format_of


def fused_dot(adder, a, b, c=0.0, *, storage="f32", acc="f32"):
    """The chain of blocks over all terms: each result is the next accumulator, missing terms are zeros."""
    fmt = adder.input or format_of(storage)
    a, b = [read(adder, x, fmt) for x in a], [read(adder, x, fmt) for x in b]
    for start in range(0, len(a), adder.terms):
        rows = list(zip(a[start : start + adder.terms], b[start : start + adder.terms], strict=True))
        rows += [(0.0, 0.0)] * (adder.terms - len(rows))
        c = MODELS[adder.model](adder, rows, c, fmt, adder.output or format_of(acc))
    return c


def read(adder, x, fmt):
    if fmt.name == "tf32":
        return round_exact(x, fmt, "toward_zero")
    return 0.0 if adder.model == "pairwise" and abs(x) < fmt.smallest_normal else x


def power(exponent):
    return Fraction(2) ** exponent


def toward_zero(x):
    return math.trunc(x)


def exponent_of(x, emin):
    return max(floor_log2(abs(Fraction(x))), emin)


def special(rows, c):
    """The sum where not all is finite, by the rules of IEEE 754; else None."""
    products = [x * y for x, y in rows]
    odd = [x for x in (*products, c) if not math.isfinite(x)]
    if not odd:
        return None
    return math.nan if any(map(math.isnan, odd)) or len(set(odd)) == 2 else odd[0]


def entries(rows, fmt, of_zero):
    """(exact product, its exponent) of each row."""
    return [
        (Fraction(x) * Fraction(y), exponent_of(x, fmt.emin) + exponent_of(y, fmt.emin) if x and y else of_zero)
        for x, y in rows
    ]


def cut_sum(values, bits, cut=toward_zero):
    """Each value cut to a multiple of 2^(E - bits), E the largest exponent; their sum, and E."""
    largest = max(exponent for _, exponent in values)
    unit = power(largest - bits)
    return sum((cut(value / unit) for value, _ in values), Fraction(0)) * unit, largest


def aligned(adder, rows, c, fmt, output):
    in_turn = adder.accumulator == "aligned"
    total = c if in_turn else 0.0
    register = f32 if output.emin == f32.emin else output
    for part in parts(adder, rows):
        if (odd := special(part, total)) is not None:
            total = odd
            continue
        of_total = exponent_of(total, register.emin) if total else adder.zero_exponent
        values = [*entries(part, fmt, adder.zero_exponent), (Fraction(total), of_total)]
        exact, _ = cut_sum(values, adder.fraction_bits)
        total = converted(exact, output, adder.rounding)
    return total if in_turn else plain_sum([total, c], output)


def parts(adder, rows):
    if adder.groups == "halves":
        return [row for k, row in enumerate(rows) if k % 4 < 2], [row for k, row in enumerate(rows) if k % 4 >= 2]
    return [rows]


def converted(exact, output, mode):
    if abs(exact) >= power(output.emax + 1):
        return math.copysign(math.inf, exact)
    return round_exact(exact, output, mode)


def plain_sum(values, output, subnormals="keep"):
    """One rounding to nearest of an exact sum; the sign of a zero sum is that of IEEE 754."""
    if not all(map(math.isfinite, values)):
        return special([(v, 1.0) for v in values], 0.0)
    exact = sum(map(Fraction, values), Fraction(0))
    if exact == 0:
        return -0.0 if all(math.copysign(1.0, v) < 0 for v in values) else 0.0
    return round_exact(exact, output, subnormals=subnormals)


def exact_model(adder, rows, c, fmt, output):
    if (odd := special(rows, c)) is not None:
        return odd
    return round_exact(sum((p for p, _ in entries(rows, fmt, 0)), Fraction(c)), output, adder.rounding)


def pairwise(adder, rows, c, fmt, output):
    values = [x * y for x, y in rows]  # exact in float64
    values = [round_exact(v, f32, subnormals="ftz") for v in values]
    while len(values) > 1:
        values = [plain_sum(values[i : i + 2], f32, "ftz") for i in range(0, len(values), 2)]
    return plain_sum([0.0 if abs(c) < f32.smallest_normal else c, values[0]], f32, "ftz")


def two_step(adder, rows, c, fmt, output):
    odd = special(rows, c)
    beyond = [math.copysign(math.inf, x * y) for x, y in rows if abs(x * y) >= 2.0**128 and adder.groups == "one"]
    if odd is not None or beyond:
        return special([(x, 1.0) for x in beyond] + ([(odd, 1.0)] if odd is not None else []), c)
    bits, none = adder.fraction_bits, -999
    if adder.groups == "parities":
        halves = [cut_sum(entries(rows[i::2], fmt, none), bits) for i in (0, 1)]
        total, of_total = cut_sum(halves, bits, math.floor)
    else:
        total, of_total = cut_sum(entries(rows, fmt, none), bits)
    of_c = exponent_of(c, f32.emin) if c else f32.emin
    largest = max(of_total, of_c)
    is_dropped = adder.groups == "parities" and largest - of_c > bits + 1
    cut_c = Fraction(0) if is_dropped else math.floor(Fraction(c) / power(largest - bits)) * power(largest - bits)
    unit = power(largest - adder.sum_bits)
    exact = math.floor(total / unit) * unit + cut_c
    if exact == 0:
        return 0.0
    unit = power(exponent_of(exact, f32.emin) - adder.total_bits)
    return round_exact(math.floor(exact / unit) * unit, output, adder.rounding)


MODELS = {"aligned": aligned, "exact": exact_model, "pairwise": pairwise, "two-step": two_step}

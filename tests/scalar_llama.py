"""The blocks of a Llama one number at a time, in fractions: written from the words of their docstrings, not their code.

Every function takes Python lists and format names. `round_exact`, the evident scalar form, is all that it borrows;
exponentials, roots, cosines and sines come from `decimal` with 60 digits.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

from softfloat_llm.numerics.exact import round_exact
from tests.oracle import ExactMachine, sum_in_order

DIGITS = 60


def decimal_of(x):
    x = Fraction(x)
    return Decimal(x.numerator) / Decimal(x.denominator)


def exponential(x, fmt):
    """e^x rounded once. x a float, -inf included."""
    if x == -math.inf:
        return 0.0
    if not -1000 < x < 1000:
        return math.inf if x > 0 else round_exact(Fraction(1, 2**1000), fmt)
    with localcontext() as context:
        context.prec = DIGITS
        return round_exact(Fraction(decimal_of(x).exp()), fmt)


def root(x, fmt, *, reciprocal=False):
    """The square root of x, or its reciprocal, rounded once."""
    if x == math.inf:
        return 0.0 if reciprocal else math.inf
    if x == 0:
        return math.inf if reciprocal else 0.0
    with localcontext() as context:
        context.prec = DIGITS
        value = decimal_of(x).sqrt()
        return round_exact(Fraction(1 / value if reciprocal else value), fmt)


def power(base, exponent, fmt):
    """base^exponent rounded once, for base > 0."""
    if exponent == 0:
        return 1.0
    with localcontext() as context:
        context.prec = DIGITS
        return round_exact(Fraction((decimal_of(base).ln() * decimal_of(exponent)).exp()), fmt)


def cos_sin(angle, fmt):
    """cos and sin of an angle below some 10^4 in magnitude, each rounded once: a Taylor series of the angle itself."""
    with localcontext() as context:
        context.prec = 2 * DIGITS + int(abs(angle))
        x, total = decimal_of(angle), [Decimal(0), Decimal(0)]
        term, n = Decimal(1), 0
        while n <= abs(angle) or abs(term) > Decimal(10) ** -DIGITS:
            total[n % 2] += term if n % 4 < 2 else -term
            n += 1
            term *= x / n
        return tuple(round_exact(Fraction(value), fmt) for value in total)


def op(what, x, y, fmt):
    """One operation on floats, exact and then rounded once; infinities and NaN as IEEE 754 has them."""
    if not (math.isfinite(x) and math.isfinite(y)) or (what == "/" and y == 0):
        return special(what, x, y)
    if what == "+":
        return ExactMachine(fmt).add(x, y)
    exact = Fraction(x) * Fraction(y) if what == "*" else Fraction(x) / Fraction(y)
    is_negative = math.copysign(1.0, x) * math.copysign(1.0, y) < 0
    return round_exact(exact if exact else (-0.0 if is_negative else 0.0), fmt)


def special(what, x, y):
    if what == "/" and y == 0:
        return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1.0, y)
    return {"+": lambda: x + y, "*": lambda: x * y, "/": lambda: x / y}[what]()


# --- sums -------------------------------------------------------------------------------------------------------------


def dot(a, b, *, product="exact", acc="f32", order="seq", output):
    """sum(a*b) as (accumulator, output): products exact or rounded, each term rounded as it enters the sum."""
    if product == "exact":
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
    else:
        terms = [op("*", x, y, product) for x, y in zip(a, b, strict=True)]
    return total(terms, acc, order, output)


def total(terms, acc, order, output):
    if acc == "exact":
        value = round_exact(sum(map(Fraction, terms), Fraction(0)), output)
        return value, value
    machine = WithInfinity(acc)
    value = sum_in_order(order, terms, machine)
    return value, round_exact(value, output)


class WithInfinity(ExactMachine):
    """Terms are fractions until they meet an infinite sum."""

    def add(self, x, y):
        if any(isinstance(v, float) and not math.isfinite(v) for v in (x, y)):
            return float(x) + float(y)
        if Fraction(x) + Fraction(y) == 0 and not (isinstance(x, float) and isinstance(y, float)):
            return 0.0  # a product of 0: the sign of a zero sum in ties_to_even is + unless both are -0
        return (
            super().add(float(x), float(y))
            if self.is_float(x) and self.is_float(y)
            else self.round(Fraction(x) + Fraction(y))
        )

    @staticmethod
    def is_float(x):
        return isinstance(x, float)


# --- blocks -----------------------------------------------------------------------------------------------------------


def rms_norm(x, weight, eps, *, storage, output, compute="f32", product=None, acc="f32", order="seq", root="rsqrt",
             form="round-then-weight", root_format=None, mean="divide", takes="stored", unrounded=None):  # fmt: skip
    """x / sqrt(mean(x^2) + eps) * weight for one row; `unrounded` is the row before it was rounded to be stored."""
    x, weight = ([round_exact(v, storage) for v in row] for row in (x, weight))
    measured = x if takes == "stored" else unrounded
    x = unrounded if takes == "unrounded" else x
    scale = root_of_mean(measured, eps, compute, product or compute, acc, order, mean, root)
    scale = round_exact(scale, root_format or compute)
    apply = "/" if root == "divide" else "*"
    if form == "round-then-weight":
        normal = [round_exact(op(apply, v, scale, compute), output) for v in x]
        return [op("*", n, w, output) for n, w in zip(normal, weight, strict=True)]
    if form == "weight-then-round":
        normal = [op(apply, v, scale, compute) for v in x]
        return [round_exact(op("*", n, w, compute), output) for n, w in zip(normal, weight, strict=True)]
    weighted = [op("*", v, w, compute) for v, w in zip(x, weight, strict=True)]
    return [round_exact(op(apply, v, scale, compute), output) for v in weighted]


def root_of_mean(x, eps, compute, product, acc, order, mean, root_form):
    """What a row is multiplied with, or divided by (divide)."""
    wide, squares = dot(x, x, product=product, acc=acc, order=order, output=compute)
    n = float(len(x))
    if mean == "divide":
        middle = op("/", squares, n, compute)
    elif mean == "times-reciprocal":
        middle = op("*", squares, op("/", 1.0, n, compute), compute)
    else:
        middle = round_exact(op("/", wide, n, compute if acc == "exact" else acc), compute)
    shifted = op("+", middle, round_exact(eps, compute), compute)
    if root_form == "rsqrt":
        return root(shifted, compute, reciprocal=True)
    return op("/", 1.0, root(shifted, compute), compute) if root_form == "one-over-sqrt" else root(shifted, compute)


def frequencies(theta, size, compute="f32"):
    """1 / theta^(2i/C): 2i/C, the power and its reciprocal are each rounded."""
    exponents = [op("/", float(2 * i), float(size), compute) for i in range(size // 2)]
    return [op("/", 1.0, power(theta, e, compute), compute) for e in exponents]


def frequencies_by_exp(theta, size, compute="f32"):
    """e^(-i g), g = ln(theta) over C/2: the logarithm, g, i g and the exponential are each rounded."""
    step = op("/", logarithm(theta, compute), float(size // 2), compute)
    return [exponential(op("*", float(-i), step, compute), compute) for i in range(size // 2)]


def frequencies_by_exp2(theta, size, compute="f32"):
    """2^(-d l), d = i over C/2, l = log2(theta): d, l, d l and the power are each rounded."""
    parts = [op("/", float(i), float(size // 2), compute) for i in range(size // 2)]
    return [power(2.0, op("*", -d, logarithm(theta, compute, base=2), compute), compute) for d in parts]


def logarithm(x, fmt, base=None):
    with localcontext() as context:
        context.prec = DIGITS
        value = decimal_of(x).ln() / (1 if base is None else decimal_of(base).ln())
        return round_exact(Fraction(value), fmt)


def iterated_angles(position, theta, size, compute="f32", kept=None):
    """The position, then each angle the last one times theta^(-2/C): the exponent, the power, each angle rounded."""
    ratio = power(theta, op("/", -2.0, float(size), compute), compute)
    angles = [round_exact(float(position), compute)]
    while len(angles) < size // 2:
        angles.append(op("*", angles[-1], round_exact(ratio, kept or compute), compute))
    return angles


def rope_row(position, theta, size, *, compute="f32", output, made="pow", kept=None):
    """cos, then sin: the position, the angle, its cosine and sine rounded to compute; then to the output."""
    place = round_exact(float(position), compute)
    if made == "iterated":
        angles = iterated_angles(position, theta, size, compute, kept)
    else:
        ways = {"pow": frequencies, "exp": frequencies_by_exp, "exp2": frequencies_by_exp2}
        held = [round_exact(f, kept or compute) for f in ways[made](theta, size, compute)]
        angles = [op("*", place, f, compute) for f in held]
    pairs = [cos_sin(angle, compute) for angle in angles]
    return [[round_exact(v, output) for v in column] for column in zip(*pairs, strict=True)]


def rotate(x, cos, sin, *, storage, output, form="each", pairs="half-split"):
    """Rotation of one head's vector, pair by pair."""
    x, half = [round_exact(v, storage) for v in x], len(x) // 2
    first, second = (x[:half], x[half:]) if pairs == "half-split" else (x[::2], x[1::2])
    left = [combined(a, c, b, -s, output, form) for a, b, c, s in zip(first, second, cos, sin, strict=True)]
    right = [combined(a, s, b, c, output, form) for a, b, c, s in zip(first, second, cos, sin, strict=True)]
    return left + right if pairs == "half-split" else [v for pair in zip(left, right, strict=True) for v in pair]


def combined(a, c, b, s, output, form):
    """a*c + b*s: three roundings; one; or two, where b*s is rounded and a*c fused."""
    if form == "each":
        return op("+", op("*", a, c, output), op("*", b, s, output), output)
    if form == "fma":
        exact = Fraction(a) * Fraction(c) + Fraction(op("*", b, s, output))
        return round_exact(exact, output) if exact else op("+", a * c, op("*", b, s, output), output)
    exact = Fraction(a) * Fraction(c) + Fraction(b) * Fraction(s)
    return round_exact(exact, output) if exact else op("+", a * c, b * s, output)


def softmax(x, *, storage, output, compute="f32", product=None, acc="f32", order="seq", form="divide",
            base="e", sum_of="terms"):  # fmt: skip
    """exp(x - max) / sum for one row of the keys that are seen."""
    x = [round_exact(v, storage) for v in x]
    weights = [raised(base, op("+", v, -max(x), compute), compute) for v in x]
    given = weights if sum_of == "terms" else [round_exact(w, output) for w in weights]
    terms = given if product == "exact" else [round_exact(w, product or compute) for w in given]
    _, below = total(terms, acc, order, compute)
    if form == "divide":
        return [round_exact(op("/", w, below, compute), output) for w in weights]
    factor = op("/", 1.0, below, compute)
    return [round_exact(op("*", w, factor, compute), output) for w in weights]


def raised(base, x, fmt):
    """e^x or 2^x, rounded once; x a float, -inf included."""
    return power(2.0, x, fmt) if base == "2" and math.isfinite(x) else exponential(x, fmt)


def flash(scores, values, keys, *, storage, output, p="f32", acc="f32", kept=None, form="reciprocal", base="e",
          sum_acc="f32", is_f64=False):  # fmt: skip
    """One query: blocks of keys, each against the largest score so far. scores (S,), values (S, C); the result (C,).

    `p` is the format in which P meets the values. The sum so far times its correction, plus that of the block, is
    rounded once; with `is_f64` the product is rounded to f32 first and the block's sum is one of f64.
    """
    top, total, out = -math.inf, 0.0, [0.0] * len(values[0])
    scores = [round_exact(s, storage) for s in scores]
    for start in range(0, len(scores), keys):
        block, rows = scores[start : start + keys], values[start : start + keys]
        largest = max(top, *block)
        weights = [raised(base, op("+", s, -largest, "f32"), "f32") for s in block]
        correction = raised(base, op("+", top, -largest, "f32"), "f32")
        own = total_of(weights, "f64" if is_f64 else sum_acc)
        if is_f64:
            total = round_exact(Fraction(op("*", total, correction, "f32")) + Fraction(own), "f32")
        else:
            total = round_exact(Fraction(total) * Fraction(correction) + Fraction(own), sum_acc)
        for c in range(len(out)):
            start_at = kept_in(kept, op("*", out[c], correction, acc))
            machine = WithInfinity(acc)
            running = start_at
            for w, row in zip(weights, rows, strict=True):
                running = machine.add(running, Fraction(round_exact(w, p)) * Fraction(row[c]))
            out[c] = kept_in(kept, running)
        top = largest
    if form == "divide":
        return [round_exact(op("/", v, total, acc), output) for v in out]
    factor = op("/", 1.0, total, "f32")
    return [round_exact(op("*", v, factor, acc), output) for v in out]


def kept_in(fmt, x):
    return x if fmt is None else round_exact(x, fmt)


def total_of(terms, acc):
    return total(terms, acc, "seq", acc)[0]


def scaled(score, factor, *, storage, output, compute="f32"):
    return round_exact(op("*", round_exact(score, storage), round_exact(factor, compute), compute), output)


def silu(gate, *, storage, output, compute="f32", form="quotient"):
    """gate / (1 + exp(-gate)): the exponential, 1 + it and the quotient rounded to compute, then to output."""
    gate = round_exact(gate, storage)

    def step(value, fmt=output if form == "stepwise" else compute):
        return round_exact(value, fmt)

    below = step(op("+", 1.0, step(exponential(-gate, compute)), compute))
    if form == "times-sigmoid":
        return op("*", gate, round_exact(op("/", 1.0, below, compute), output), output)
    return round_exact(step(op("/", gate, below, compute)), output)


def multiplied(x, y, *, storage, output, compute="exact"):
    """x times y: once to the output, or to compute first."""
    x, y = round_exact(x, storage), round_exact(y, storage)
    return op("*", x, y, output) if compute == "exact" else round_exact(op("*", x, y, compute), output)


# --- a whole pass -----------------------------------------------------------------------------------------------------


def forward(weights, config, tokens, *, storage, product="exact", acc="f32", order="seq", root_form="rsqrt",
            softmax_form="divide"):  # fmt: skip
    """Logits (T, V) of a small Llama, every tensor in one format, statistics in f32. weights: name -> nested lists."""
    w = {name: rounded(tensor, storage) for name, tensor in weights.items()}
    s = {"storage": storage, "output": storage}
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    rows = [w["model.embed_tokens.weight"][t] for t in tokens]
    tables = [rope_row(p, config.rope_theta, size, output=storage) for p in range(len(tokens))]

    def linear(x, name):
        return [dot(x, row, product=product, acc=acc, order=order, output=storage)[1] for row in w[f"{name}.weight"]]

    def norm(x, name):
        return rms_norm(x, w[name], config.rms_norm_eps, root=root_form, **s)

    def heads_of(x):
        return [x[i : i + size] for i in range(0, len(x), size)]

    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}"
        h = [norm(x, f"{name}.input_layernorm.weight") for x in rows]
        q, k, v = ([heads_of(linear(x, f"{name}.self_attn.{p}_proj")) for x in h] for p in "qkv")
        q, k = ([[rotate(head, *tables[t], **s) for head in row] for t, row in enumerate(part)] for part in (q, k))
        mixed = []
        for t in range(len(rows)):
            row = []
            for head in range(heads):
                g = head // (heads // groups)
                raw = [dot(q[t][head], k[u][g], product=product, acc=acc, order=order, output=storage)[1]
                       for u in range(t + 1)]  # fmt: skip
                p = softmax([scaled(r, size**-0.5, **s) for r in raw], form=softmax_form, **s)
                row += [dot(p, [v[u][g][c] for u in range(t + 1)], product=product, acc=acc, order=order,
                            output=storage)[1] for c in range(size)]  # fmt: skip
            mixed.append(row)
        rows = [added(x, linear(m, f"{name}.self_attn.o_proj"), storage) for x, m in zip(rows, mixed, strict=True)]
        h = [norm(x, f"{name}.post_attention_layernorm.weight") for x in rows]
        gates, ups = ([linear(x, f"{name}.mlp.{p}_proj") for x in h] for p in ("gate", "up"))
        acts = [[op("*", silu(a, **s), b, storage) for a, b in zip(g, u, strict=True)]
                for g, u in zip(gates, ups, strict=True)]  # fmt: skip
        rows = [added(x, linear(a, f"{name}.mlp.down_proj"), storage) for x, a in zip(rows, acts, strict=True)]
    final = [norm(x, "model.norm.weight") for x in rows]
    return [linear(x, "lm_head") for x in final]


def added(x, y, fmt):
    return [op("+", a, b, fmt) for a, b in zip(x, y, strict=True)]


def rounded(values, fmt):
    return [rounded(v, fmt) if isinstance(v, list) else round_exact(v, fmt) for v in values]

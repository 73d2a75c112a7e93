"""The accumulation order of a kernel, from outside: what it adds to what, what it loses, and the text that says so.

`reveal` asks a callable for sums of chosen terms, finds its tree (`joins`), what is lost at each node (`traits`), names
that may be meant (`guesses`, `recognise`), and holds each against the kernel on other terms, bit for bit (`trials`).
What it says of a kernel that does not agree is said as such.

**Source:** Xie et al., FPRev: Revealing the Order of Floating-Point Summations (2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from softfloat_llm.analysis.guesses import Guess, guesses
from softfloat_llm.analysis.joins import Joined, found_joins
from softfloat_llm.analysis.markup import html_text
from softfloat_llm.analysis.probes import Kernel, Mask, Subject, Takes, found_masks
from softfloat_llm.analysis.traits import EXACT, Traits, found_traits
from softfloat_llm.analysis.trials import Finish, Tally, Trial, compared, compared_exactly, is_steady, trials
from softfloat_llm.errors import ProbeError
from softfloat_llm.numerics.formats import Format, f64, format_of
from softfloat_llm.numerics.orders import Order
from softfloat_llm.numerics.precision import Precision
from softfloat_llm.numerics.trees import Tree

_MOST_ONE_BY_ONE = 100  # terms that are looked for one in a row: n^2 log n rows
_FEWER = (16, 256)  # what the number of terms counted in one row is divided by, where the answers contradict


@dataclass(frozen=True)
class Revealed:
    """What was found of a kernel's sums of n terms.

    `order`: the text of an order; None where the language has no name for the tree, or there is no tree. `precision`:
    all stages, with the tree itself as its order where it has no name; None where nothing was found that can be
    computed here. `alike`: other orders that do the same, matrix units that cannot be told apart. `rows`: sums asked
    for. `checked` sums of other terms were compared with those of `precision`; `different` of them differ in a bit.
    """

    n: int
    takes: Takes
    storage: Format
    output: Format
    tree: Tree | None
    order: str | None
    precision: Precision | None
    traits: Traits
    alike: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    rows: int = 0
    checked: int = 0
    different: int = 0

    @property
    def is_confirmed(self) -> bool:
        """True where the kernel's sums of other terms were those of the order in every bit."""
        return self.checked > 0 and self.different == 0

    def _repr_html_(self) -> str:
        from softfloat_llm.analysis.reveal_text import revealed_text

        return html_text(revealed_text(self, "revealed"))


def reveal(
    kernel: Kernel,
    n: int,
    *,
    storage: str | Format,
    output: str | Format | None = None,
    takes: Takes = "products",
    factor: float = 1.0,
    finish: Finish | None = None,
) -> Revealed:
    """The order, accumulator and roundings of the sums of n terms that a kernel makes.

    kernel(a, b) -> (R,) with takes="products", a and b (R, n) in the dtype of `storage`, R sums of one shape at once;
    kernel(x) -> (R,) with takes="terms". Its results are values of `output` (default: the storage). A kernel that
    gives its sums times something (a mean) says so by `factor`, and by `finish` how it comes to that.
    **Raises** ProbeError where the kernel gives no sums at all.

    >>> from softfloat_llm.numerics import reduce
    >>> kernel = lambda a, b: reduce.dot(a, b, "storage=bf16,order=blocked:8 > lanes:2")
    >>> found = reveal(kernel, 20, storage="bf16")
    >>> found.order, str(found.precision.acc), found.is_confirmed
    ('blocked:8 > lanes:2', 'f32', True)
    """
    if n < 1:
        raise ProbeError(f"Revealing a kernel of {n} terms: a sum has at least one.")
    stored = format_of(storage)
    subject = Subject(kernel, n, stored, format_of(stored if output is None else output), takes=takes, factor=factor)
    tried = trials(subject)
    if not is_steady(subject, tried):
        return _revealed(subject, Traits(), findings=("not steady: the same terms, asked again, give other bits",))
    findings: list[str] = []
    root, mask = _joins(subject, findings)
    traits = Traits() if root is None else found_traits(subject, mask, root)
    if traits.operand_bits is not None:
        findings.append(f"operands keep {traits.operand_bits} bits: they, or the sum, are rounded on the way")
    return _judged(subject, tried, traits, root, findings, finish)


def _joins(subject: Subject, findings: list[str]) -> tuple[Joined | int | None, Mask | None]:
    """The tree, and the mask that showed it. No tree where nothing is lost in sums, or the answers contradict."""
    if subject.n <= 2:
        return (Joined([0, 1]) if subject.n == 2 else 0), None
    problem = ""
    for mask in _masks(subject):
        try:
            return found_joins(subject, mask), mask
        except ProbeError as error:
            problem = problem or f"no tree: {error}"
    findings.append(problem or "no sum of such terms lost anything: the order has no effect that could be seen")
    return None, None


def _masks(subject: Subject) -> Iterator[Mask]:
    """Masks to try, one after another: for directed roundings, and with fewer terms counted in a row, at last."""
    first = None
    for mask in found_masks(subject):
        first = first or mask
        yield mask
    if first is not None:
        least = first.least(subject.n)
        yield from [least] if least.big < first.big else []
        yield from (replace(first, most=max(1, first.most // part)) for part in _FEWER)
        yield from [replace(first, most=1, modulus=1)] if subject.n <= _MOST_ONE_BY_ONE else []


def _judged(
    subject: Subject,
    tried: list[Trial],
    traits: Traits,
    root: Joined | int | None,
    findings: list[str],
    finish: Finish | None,
) -> Revealed:
    """The first guess that the kernel agrees with, and those of many-operand adders beside it; else the nearest."""
    best, nearest = None, Tally()
    alike: list[str] = []
    for guess in guesses(subject, traits, root):
        tally = _compared(subject, tried, guess, traits, finish)
        if nearest.is_clean and tally.is_clean and guess.order is not None:
            alike.append(guess.order)
        elif best is None or (tally.checked > 0, -tally.different) > (nearest.checked > 0, -nearest.different):
            best, nearest = guess, tally
        if tally.is_clean and not _is_fused(guess):
            break
    if best is None or (root is None and not nearest.is_clean):
        return _revealed(subject, traits, findings=tuple(findings))
    if nearest.different:
        findings.append(_difference(nearest))
    return _revealed(
        subject, traits, tree=best.tree, order=best.order, precision=best.precision, alike=tuple(alike),
        findings=tuple(findings), checked=nearest.checked, different=nearest.different,
    )  # fmt: skip


def _difference(tally: Tally) -> str:
    how = "" if tally.unequal else ", all in the sign of a zero"
    return f"{tally.different} of {tally.checked} sums of other terms differ from those of what was found{how}"


def _is_fused(guess: Guess) -> bool:
    return guess.order is not None and Order(guess.order).adder is not None


def _compared(subject: Subject, tried: list[Trial], guess: Guess, traits: Traits, finish: Finish | None) -> Tally:
    if guess.precision is not None:
        return compared(subject, tried, guess.precision, finish)
    is_f64 = subject.storage is f64 and traits.acc_bits == f64.precision and subject.takes == "products"
    if is_f64 and guess.tree is not None and EXACT in traits.term_bits.values():
        return compared_exactly(subject, tried, guess.tree, f64)
    return Tally()


def _revealed(subject: Subject, traits: Traits, **found: object) -> Revealed:
    base = {"tree": None, "order": None, "precision": None} | found
    return Revealed(
        subject.n,
        subject.takes,
        subject.storage,
        subject.output,
        traits=traits,
        rows=subject.rows,
        **base,  # type: ignore[arg-type]
    )

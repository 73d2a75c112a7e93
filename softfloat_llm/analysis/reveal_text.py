"""What was revealed of a kernel, as people read it: its order, its stages, how far it is confirmed, and its tree."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from softfloat_llm.analysis.reveal import Revealed
from softfloat_llm.analysis.traits import EXACT, Traits
from softfloat_llm.analysis.wording import labelled
from softfloat_llm.numerics.trees import Chain, Flat, Join, Node, Rounded, fold

_MOST_LINES = 14  # of a drawing
_MOST_ALIKE = 6
_LONGEST = 100


def revealed_text(found: Revealed, what: str, *, verbose: bool = False) -> str:
    """The lines of an answer: `kernel`, `order`, `stages`, `checked`, `note`s, and the tree where it is small.

    `verbose`: the tree is drawn whatever its size.
    """
    lines = [labelled("kernel", f"{what}: {found.n} {found.takes} of {found.storage}, results in {found.output}")]
    lines.append(labelled("order", order_words(found)))
    if found.precision is not None:
        lines.append(labelled("stages", " · ".join(f"{key} {word}" for key, word in stages(found).items())))
    lines += [labelled("seen", words)] if (words := "; ".join(trait_words(found.traits))) else []
    lines.append(labelled("checked", checked_words(found)))
    lines += [labelled("note", finding) for finding in found.findings]
    drawing = drawn(found.tree.shape) if found.tree is not None and found.n > 1 else []
    if drawing and (verbose or len(drawing) <= _MOST_LINES):
        lines += ["", *drawing]
    return "\n".join(lines)


def order_words(found: Revealed) -> str:
    """The order's text, or why there is none."""
    if found.order is not None:
        more = f" and {len(found.alike) - _MOST_ALIKE} more" if len(found.alike) > _MOST_ALIKE else ""
        alike = f"   (the same here: {', '.join(found.alike[:_MOST_ALIKE])}{more})" if found.alike else ""
        return found.order + alike
    if found.tree is not None:
        return "a tree that has no name in the language: --save FILE keeps it, for order=tree:@FILE"
    return "none was found"


def stages(found: Revealed) -> dict[str, str]:
    """The stages of the precision, without the order."""
    assert found.precision is not None
    return {key: word for key, word in found.precision.items() if key != "order"}


def checked_words(found: Revealed) -> str:
    """How far what was found agrees with the kernel."""
    asked = f"{found.rows} sums asked"
    if not found.checked:
        return f"{asked}; nothing could be compared" if found.rows else "nothing could be compared in bits"
    verdict = "0 differ in a bit" if not found.different else f"{found.different} differ"
    return f"{asked}; {found.checked} sums of other terms compared: {verdict}"


def trait_words(traits: Traits) -> list[str]:
    """What the probes showed of each stage, in words."""
    entering = set(traits.term_bits.values())
    words = {
        "products enter unrounded (fma)": EXACT in entering,
        f"products are rounded to {max(entering, default=0)} bits": bool(entering) and EXACT not in entering,
        f"partial sums keep {traits.acc_bits} bits": traits.acc_bits is not None,
        f"they round {traits.mode}": traits.mode is not None,
        f"many terms at once, {traits.fraction_bits} bits below the largest": traits.fraction_bits is not None,
        "subnormal operands are read as zeros": traits.flushes_operands is True,
        "subnormal sums are flushed": traits.flushes_sums is True,
        "sums start at +0": traits.starts_at_zero is True,
        "sums start with a term": traits.starts_at_zero is False,
    }
    return [word for word, is_so in words.items() if is_so]


def drawn(root: Node) -> list[str]:
    """A tree in lines: a sum of terms alone in one line, any other with its parts below it.

    >>> from softfloat_llm.numerics.orders import Order
    >>> print("\\n".join(drawn(Order("lanes:2").tree(5).shape)))
    sum
    |- 0 + 2 + 4
    `- 1 + 3
    """
    lines: list[str] = fold(root, _drawn)
    return lines


def _drawn(node: Node, parts: list[list[str]]) -> list[str]:
    match node:
        case int():
            return [str(node)]
        case Rounded():
            return [f"{node.format}: {parts[0][0]}", *parts[0][1:]]
    assert isinstance(node, (Chain, Join, Flat))
    if all(_is_term(part) for part in parts):
        line = _run([part[0] for part in parts]) or "0"
        return [f"[{line}] at once" if isinstance(node, Flat) else line]
    grouped = _with_runs(parts)
    lines = ["all at once" if isinstance(node, Flat) else "sum"]
    for place, part in enumerate(grouped):
        is_last = place == len(grouped) - 1
        lines += [("`- " if is_last else "|- ") + part[0], *(("   " if is_last else "|  ") + line for line in part[1:])]
    return lines


def _is_term(part: list[str]) -> bool:
    return len(part) == 1 and part[0].isdigit()


def _run(terms: list[str]) -> str:
    line = " + ".join(terms)
    return line if len(line) <= _LONGEST else f"{terms[0]} + {terms[1]} + ... + {terms[-1]} ({len(terms)} terms)"


def _with_runs(parts: list[list[str]]) -> list[list[str]]:
    """The parts of a node, neighbouring terms in one line."""
    grouped: list[list[str]] = []
    for is_term, run in groupby(parts, _is_term):
        neighbours = list(run)
        grouped += [[f"+ {_run([part[0] for part in neighbours])}"]] if is_term else neighbours
    return grouped


def to_dict(found: Revealed) -> dict[str, Any]:
    """The JSON of what was found."""
    traits = found.traits
    return {
        "n": found.n,
        "takes": found.takes,
        "storage": str(found.storage),
        "output": str(found.output),
        "order": found.order,
        "alike": list(found.alike),
        "tree": None if found.tree is None else str(found.tree),
        "stages": None if found.precision is None else stages(found),
        "seen": {
            "acc_bits": traits.acc_bits,
            "fma": EXACT in traits.term_bits.values() if traits.term_bits else None,
            "rounding": traits.mode,
            "fraction_bits": traits.fraction_bits,
            "flushes_operands": traits.flushes_operands,
            "flushes_sums": traits.flushes_sums,
            "starts_at_zero": traits.starts_at_zero,
        },
        "findings": list(found.findings),
        "asked": found.rows,
        "checked": found.checked,
        "different": found.different,
        "confirmed": found.is_confirmed,
    }

"""Claims in tests: each line printed, and held."""

from __future__ import annotations

from softfloat_llm.claims.bench import Bench
from softfloat_llm.claims.outcome import Line
from softfloat_llm.claims.reproduce import CLAIMS


def reproduced(bench: Bench, claim: str) -> dict[str, Line]:
    """The lines of a claim by what they are about. None fails, and one is judged at least."""
    lines = CLAIMS[claim].check(bench)
    for line in lines:
        print(f"{line.what}: {line.obtained} (expected {line.expected}) {line.verdict}")
    assert [line for line in lines if line.verdict == "fails"] == []
    assert any(line.verdict == "holds" for line in lines)
    found = {line.what: line for line in lines}
    assert len(found) == len(lines)  # each says what it alone is about
    return found

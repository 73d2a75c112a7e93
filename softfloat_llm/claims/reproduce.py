"""reproduce(id): a claim checked on a model, what is expected beside what is obtained.

Start reading at `CLAIMS`. A Reproduction is plain data: `str` is the terminal's answer, `to_dict` the JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from softfloat_llm.analysis.answers import Answer, Table, counted
from softfloat_llm.claims import arithmetic, debugging, engines, model_runs
from softfloat_llm.claims.articles import articles
from softfloat_llm.claims.bench import Bench
from softfloat_llm.claims.outcome import Line, Outcome
from softfloat_llm.errors import WordError, nearest
from softfloat_llm.io.checkpoint import Model, open_model
from softfloat_llm.io.progress import Progress

SCHEMA = "softfloat-llm/reproduce/1"
ALL = "all"
WIDEST = 48  # characters of a cell; -v and --json have them whole


class Claim(NamedTuple):
    """What is claimed, and the function that looks."""

    what: str
    check: Callable[[Bench], list[Line]]


CLAIMS: dict[str, Claim] = {
    "S1": Claim("formats: bytes, bits, largest values and eps of f32, f16, bf16", arithmetic.s01),
    "S2": Claim("in bf16 (256 + 1) + 1 = 256, but 256 + (1 + 1) = 258", arithmetic.s02),
    "S3": Claim("bf16 spacing: 2 at 256, 0.125 in [16, 32); f16 1/64 there", arithmetic.s03),
    "S4": Claim("22.371271 and 22.277479 stay one ulp apart in bf16, and apart in f16", arithmetic.s04),
    "S5": Claim("both logits 22.25, at ids 253 and 260: argmax takes the lowest id", arithmetic.s05),
    "S6": Claim("bf16 flips tokens only where the margin is small beside the error", model_runs.s06),
    "S7": Claim("one f16 product: an f16 accumulator errs about 40 times as much as an f32 one", arithmetic.s07),
    "S8": Claim("whole model: f16 errs a tenth of bf16; with f16 accumulators it errs like bf16", model_runs.s08),
    "S9": Claim("attention in f32 moves the error, but does not decide the close step", model_runs.s09),
    "S10": Claim("free running is not teacher forcing; a cached decode has the bits of one pass", model_runs.s10),
    "S11": Claim("the rope table has a format of its own; a mismatch names both sides", engines.s11),
    "S12": Claim("bf16 + f32 is f32; scalars do not promote; matmul refuses two types", engines.s12),
    "S13": Claim("a bf16 softmax whose sum is bf16 does not add up to 1", arithmetic.s13),
    "S14": Claim("autocast chooses a format for each operation", engines.s14),
    "S15": Claim("who can run what, and how the others refuse", engines.s15),
    "S16": Claim("SGLang: bf16 products, a cache of its own format, norms in f32, logits widened last", engines.s16),
    "S17": Claim("TF32 is a compute path for f32 products, no storage format", engines.s17),
    "S18": Claim("f16 overflows at 65504 and underflows early; bf16 has f32's range", model_runs.s18),
    "S19": Claim("another order of sums gives other bits; run-to-run noise is another thing", model_runs.s19),
    "S20": Claim(
        "to debug: formats, the earliest difference, NaN and inf first, then tokens and errors", debugging.s20
    ),
}


@dataclass(frozen=True)
class Reproduction(Answer):
    """Claims that were checked on a model. `kind` says what could be expected of it (see `bench.Bench`)."""

    model: str
    model_digest: str
    kind: str
    outcomes: tuple[Outcome, ...]

    @property
    def failing(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.verdict == "fails")

    @property
    def is_reproduced(self) -> bool:
        """True where no claim fails."""
        return not self.failing

    def heading(self) -> list[tuple[str, str]]:
        told = {"original": f"{self.model}, taken for the original weights of SmolLM2-135M-Instruct",
                "smollm2": f"{self.model} (the conversion that fetch makes)"}  # fmt: skip
        source = [("against", articles()["source"])] if self.kind == "original" else []
        return [("model", told.get(self.kind, self.model)), *source]

    def sentences(self) -> list[str]:
        if len(self.outcomes) == 1:
            one = self.outcomes[0]
            verdicts = {"holds": "It holds.", "fails": "It does not hold.", "shown": "Nothing is judged on this model."}
            return [f"{one.id}: {one.claim}.", verdicts[one.verdict]]
        held = len([one for one in self.outcomes if one.verdict == "holds"])
        checks = len([line for one in self.outcomes for line in one.lines if line.verdict != "shown"])
        told = f"{held} of {counted(len(self.outcomes), 'claim')} hold, in {checks} checks."
        names = ", ".join(one.id for one in self.failing)
        return [told, *([f"Not: {names}."] if names else [])]

    def tables(self, *, verbose: bool = False) -> list[Table]:
        if len(self.outcomes) == 1 or verbose:
            return [_lines_table(one, is_named=len(self.outcomes) > 1, verbose=verbose) for one in self.outcomes]
        rows = tuple((one.id, one.claim, _count(one), _mark(one.verdict)) for one in self.outcomes)
        return [Table(("id", "claim", "checks", "verdict"), rows, right=(2,))]

    def to_dict(self) -> dict[str, Any]:
        """The claims as JSON has them."""
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, "sha256": self.model_digest, "kind": self.kind},
            "claims": [one.to_dict() for one in self.outcomes],
            "is_reproduced": self.is_reproduced,
        }


def reproduce(
    claim: str = ALL,
    *,
    model: str | Path | Model = "tiny",
    workers: int = 1,
    backend: str = "numpy",
    progress: Progress | None = None,
) -> Reproduction:
    """Check a claim by its id (`S6`), or all of them, on a model.

    On the built-in model and on the converted SmolLM2 the claims are about the same phenomena; on another model of
    SmolLM2-135M's shape, which is taken for the original weights, the numbers that were measured on those are expected.
    **Raises** WordError for an id that there is none of, with the nearest.
    """
    ids = _ids(claim)
    opened = model if isinstance(model, Model) else open_model(model, progress)
    bench = Bench(opened, progress=progress, workers=workers, backend=backend)
    outcomes = tuple(Outcome(name, CLAIMS[name].what, tuple(CLAIMS[name].check(bench))) for name in ids)
    return Reproduction(opened.name, opened.weights.digest, bench.kind, outcomes)


def _ids(claim: str) -> list[str]:
    if claim.lower() == ALL:
        return list(CLAIMS)
    wanted = claim.upper().replace("S0", "S")
    if wanted not in CLAIMS:
        raise WordError(f"There is no claim {claim!r}.{nearest(wanted, CLAIMS)} Known: {ALL}, {', '.join(CLAIMS)}.")
    return [wanted]


# --- in words ---------------------------------------------------------------------------------------------------------


def _lines_table(found: Outcome, *, is_named: bool, verbose: bool) -> Table:
    first = f"{found.id}: {found.claim}" if is_named else "what"
    rows = tuple(
        (line.what, *(text if verbose else _cut(text) for text in (line.expected, line.obtained)), _mark(line.verdict))
        for line in found.lines
    )
    return Table((first, "expected", "obtained", "verdict"), rows)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def _count(found: Outcome) -> str:
    judged = [line for line in found.lines if line.verdict != "shown"]
    return f"{len([line for line in judged if line.verdict == 'holds'])} of {len(judged)}"


def _mark(verdict: str) -> str:
    return {"holds": "holds", "fails": "x does not hold", "shown": ""}[verdict]

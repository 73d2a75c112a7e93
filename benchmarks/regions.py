"""Which part of a forward pass takes the time: each look at it is charged to the innermost function that a rule names.

A function that no rule names is part of what called it. What attention and norms call is theirs, but for the
elementary functions. Start reading at `RULES`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from time import thread_time
from types import CodeType, FrameType

INTERVAL = 0.001  # seconds
REGIONS = {
    "products": "products and their sums, in the linear layers",
    "widening": "weights and activations brought to the dtype that is calculated in",
    "checks": "whether values are of their format, are finite, and allow the fast form",
    "rounding": "rounding to outputs and of residual sums",
    "norms": "RMS norms",
    "attention": "rotation, scores, softmax, P V, but for their exponentials",
    "functions": "exp, cos, sin, rsqrt and silu, correctly rounded",
    "bookkeeping": "taps, recipe, cache, Python between the calls",
}
RULES = (  # (path in the package, function, region): the first that matches
    (r"numerics/(functions|approximations|enclosures|special_values)", r".*", "functions"),
    (r"llama/blocks", r"silu|rms_norm", ""),
    (r"llama/rope", r"rope_table", "functions"),
    (r"llama/(attention|attended|hidden|softmax|query_blocks)", r".*", "attention"),
    (r"llama/recorder", r"look|is_silent|_first_nonfinite", "checks"),
    (r"numerics/(modes|rounding|ops)", r"check.*", "checks"),
    (r"numerics/(carriers|rounding|ops|elementwise)", r".*", "rounding"),
    (r"numerics/extents", r".*", "checks"),
    (r"numerics/(operands|compiled|stored_rows)", r".*(widen|carried|turned|table|from_spread).*", "widening"),
    (r"llama/stored_weights", r"_turned", "widening"),
    (
        r"numerics/",
        r".*(check|held|never|exact_in|spread|fits|enough|doubtful|can_|trifles|reach|quick_terms|largest_sum).*",
        "checks",
    ),
    (r"llama/taps", r".*", "rounding"),
    (
        r"numerics/(kernels|steps|narrow_steps|narrow_in_float32|masked_steps|tiles|threads|side_by_side"
        r"|underflow_rounding|einsum_loops|small_products|native_sums|compiled|crew|workers|exact_products|accumulate"
        r"|partials|fused|adders)",
        r".*",
        "products",
    ),
)
_NAMED = {"silu": "functions", "rms_norm": "norms"}
_OWN = ("attention", "norms", "functions")  # what they call is theirs
_PACKAGE = re.compile(r"softfloat_llm/(.*)\.py$")


def region_of(code: CodeType) -> str | None:
    """The region that a function begins; None where it is part of what called it."""
    path = _PACKAGE.search(code.co_filename.replace("\\", "/"))
    if path is None:
        return None
    for where, name, region in RULES:
        if re.match(where, path[1]) and re.fullmatch(name, code.co_name):
            return region or _NAMED[code.co_name]
    return None


class Profile:
    """`seconds` of this thread by region, looked at every INTERVAL (in the main thread, where there are such signals).

    A call into C is not interrupted: all the time since the last look is charged to where the thread is afterwards,
    which is the function that made the call.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(REGIONS, 0.0)
        self._known: dict[CodeType, str | None] = {}
        self._last = 0.0

    def of(self, work: Callable[[], object]) -> Profile:
        """This profile, with one call of the work added."""
        before = signal.signal(signal.SIGALRM, self._look)
        self._last = thread_time()
        signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)
        try:
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.seconds["bookkeeping"] += thread_time() - self._last
        return self

    def _look(self, _: int, frame: FrameType | None) -> None:
        now = thread_time()
        self.seconds[self._region(frame)] += now - self._last
        self._last = now

    def _region(self, frame: FrameType | None) -> str:
        """Of the innermost function that a rule names, from the outermost inwards."""
        codes: list[CodeType] = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        here = "bookkeeping"
        for code in reversed(codes):
            if code not in self._known:
                self._known[code] = region_of(code)
            region = self._known[code]
            if region is not None and (here not in _OWN or region == "functions"):
                here = region
        return here

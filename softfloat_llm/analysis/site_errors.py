"""The errors of each site over all layers: those of the run (inherited), and those made at the site alone (local).

A run inherits the errors of everything before a site. Fed the reference's values there (`site_runs.local_run`), a site
shows what it adds itself. Errors are measured in ulps at the largest value of a position (near a 0 an error of any size
is many ulps), of one format for all sites. Start reading at `site_errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softfloat_llm.analysis.distances import Difference
from softfloat_llm.analysis.numbers import jsonable
from softfloat_llm.analysis.taps import tap_of
from softfloat_llm.numerics.formats import Format


@dataclass(frozen=True)
class SiteError:
    """What one site gave, over all layers: the tap that is most in error, in the run and fed the reference's values.

    `differing` counts the elements of all its taps whose bits differ, of `values` in all. Ulps are of `format`.
    """

    site: str
    format: Format
    differing: int
    values: int
    inherited: Difference
    local: Difference | None

    @property
    def inherited_ulp(self) -> float:
        """The error in the run, in ulps of `format` at the largest value of its position."""
        return self.inherited.row_ulps(self.format)

    @property
    def local_ulp(self) -> float:
        """The same of the local error; 0 where there is none."""
        return 0.0 if self.local is None else self.local.row_ulps(self.format)

    def to_dict(self) -> dict[str, Any]:
        """JSON: plain numbers, strings, lists."""
        return {
            "site": self.site,
            "ulp_format": str(self.format),
            "differing": self.differing,
            "values": self.values,
            "inherited": _place(self.inherited, self.inherited_ulp),
            "local": self.local and _place(self.local, self.local_ulp),
        }


def _place(worst: Difference, row_ulp: float) -> dict[str, Any]:
    values = {"max_abs": worst.max_abs, "max_row_ulp": row_ulp}
    position = worst.max_row_ulp_at.index[0] if worst.max_row_ulp_at and worst.max_row_ulp_at.index else None
    return {"tap": worst.tap, "position": position} | {key: jsonable(x) for key, x in values.items()}


def site_errors(taps: Sequence[Difference], local: Sequence[Difference] | None, fmt: Format) -> tuple[SiteError, ...]:
    """One error a site, in the order of the forward pass, of what the sites gave (`*.out`, and taps of other names)."""
    own = {} if local is None else _of_sites(local)
    return tuple(
        SiteError(
            site=site,
            format=fmt,
            differing=sum(tap.count for tap in found),
            values=sum(tap.size for tap in found),
            inherited=_worst(found, fmt),
            local=_worst(own[site], fmt) if site in own else None,
        )
        for site, found in _of_sites(taps).items()
    )


def _of_sites(taps: Sequence[Difference]) -> dict[str, list[Difference]]:
    found: dict[str, list[Difference]] = {}
    for one in taps:
        tap = tap_of(one.tap)
        if tap.stage in ("out", ""):
            found.setdefault(tap.site, []).append(one)
    return found


def _worst(taps: Sequence[Difference], fmt: Format) -> Difference:
    return max(taps, key=lambda tap: tap.row_ulps(fmt))


def most_local(sites: Sequence[SiteError]) -> SiteError | None:
    """The site that adds the largest error itself, the first of equals; None where none adds any."""
    return max((site for site in sites if site.local_ulp > 0), key=lambda site: site.local_ulp, default=None)

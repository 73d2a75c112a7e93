"""What was measured elsewhere on the original weights, read from `articles.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def articles() -> dict[str, Any]:
    """Claim id -> the numbers that were measured; `source` says where."""
    return tomllib.loads(resources.files("softfloat_llm.claims").joinpath("articles.toml").read_text(encoding="utf-8"))

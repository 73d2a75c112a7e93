"""What a run's figures were measured on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "numba", "ml_dtypes", "gfloat", "pychop", "apytypes", "torch", "transformers")


def described() -> dict[str, Any]:
    """CPU, cores, caches, versions; and the load: where others work, figures by the wall clock are worth little."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "cache": cache_sizes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: installed for name in PACKAGES if (installed := _version(name))},
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def sentence(machine: dict[str, Any]) -> str:
    """One line of what `described` gives."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    caches = f" ({machine['cache']})" if machine["cache"] else ""
    load = f"; load when it began {machine['load'][0]}" if machine["load"] else ""
    python = f"Python {machine['python']}, {packages}"
    return (
        f"{machine['cpu']}{caches}, {machine['cores']} cores, {machine['system']}; {python}; {machine['date']}{load}."
    )


def cpu_name() -> str:
    """As Linux tells it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cache_sizes() -> str:
    """The second- and third-level caches of the first core, as Linux tells them."""
    folder, found = Path("/sys/devices/system/cpu/cpu0/cache"), []
    for index in sorted(folder.glob("index*")) if folder.is_dir() else ():
        level = (index / "level").read_text().strip()
        if level in "23":
            found.append(f"L{level} {(index / 'size').read_text().strip()}")
    return ", ".join(found)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""Which PyTorch is installed, and on what it runs: versions, the CPU's instructions, threads. PyTorch is imported late.

The order of a sum depends on all of these, so a live run says them. Start reading at `host_facts`.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softfloat_llm.errors import LiveError

# What decides which kernel PyTorch and oneDNN take for half formats.
# Source: oneDNN 3.12, src/cpu/x64/cpu_isa_traits.hpp; PyTorch 2.13, aten/src/ATen/native/mkldnn/Matmul.cpp.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Environment variables that make the libraries use less than the CPU has."""


@dataclass(frozen=True)
class Host:
    """What a live run's bits depend on beside the model: versions, instructions, threads, oneDNN or not."""

    torch: str
    transformers: str
    capability: str
    vendor: str
    instructions: tuple[str, ...]
    caps: tuple[str, ...]
    threads: int
    uses_mkldnn: bool

    def __str__(self) -> str:
        able = " ".join((self.vendor, *self.instructions))
        caps = f", {' '.join(self.caps)}" if self.caps else ""
        onednn = "on" if self.uses_mkldnn else "off"
        return (
            f"PyTorch {self.torch} ({self.capability}), transformers {self.transformers}, CPU: {able}{caps},"
            f" {self.threads} threads, oneDNN {onednn}"
        )

    @property
    def instruction_set(self) -> str:
        """The word of the recipes' names for what the half-precision kernels use here: amx, avx512bf16 or native."""
        if not self.uses_mkldnn:
            return "native"
        if self.caps or "avx512f" not in self.instructions or "amx_fp16" in self.instructions:
            return "other"
        if {"amx_bf16", "avx512_bf16", "avx512_fp16"} <= set(self.instructions):
            return "amx"
        is_plain = not {"amx_bf16", "avx512_fp16"} & set(self.instructions)
        return "avx512bf16" if "avx512_bf16" in self.instructions and is_plain else "other"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"instruction_set": self.instruction_set}


def import_torch() -> Any:
    """The module torch. Raises LiveError where it, or transformers, is not installed."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise LiveError(
            f"A live run needs PyTorch and transformers, but {error.name} is not installed here.\n"
            "  Install both: pip install '.[torch]'"
        ) from None
    return torch


def host_facts(*, uses_mkldnn: bool = True, threads: int | None = None) -> Host:
    """What is at hand here, with oneDNN or without, and so many threads (PyTorch's unless said).

    Raises LiveError where PyTorch or transformers is not installed.
    """
    torch = import_torch()
    import transformers

    return Host(
        torch=torch.__version__,
        transformers=transformers.__version__,
        capability=torch.backends.cpu.get_cpu_capability(),
        vendor=cpu_vendor(),
        instructions=cpu_instructions(),
        caps=tuple(f"{name}={os.environ[name]}" for name in CAPS if os.environ.get(name)),
        threads=torch.get_num_threads() if threads is None else threads,
        uses_mkldnn=uses_mkldnn and torch.backends.mkldnn.is_available(),
    )


CPUINFO = Path("/proc/cpuinfo")


def cpu_instructions(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Which of `INSTRUCTIONS` this CPU has, as Linux lists them; nothing elsewhere."""
    flags = set(_told(cpuinfo, "flags").split())
    return tuple(name for name in INSTRUCTIONS if name in flags)


def cpu_vendor(cpuinfo: Path = CPUINFO) -> str:
    """Whose CPU it is, such as AuthenticAMD: MKL takes other kernels for each. Elsewhere the architecture."""
    return _told(cpuinfo, "vendor_id") or platform.machine()


def _told(cpuinfo: Path, key: str) -> str:
    """What Linux tells of the first CPU under a key; nothing where it does not."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")


@contextmanager
def configured(*, uses_mkldnn: bool = True, threads: int | None = None) -> Iterator[Any]:
    """torch with oneDNN on or off and so many threads, without gradients; as it was before, afterwards."""
    torch = import_torch()
    before = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")  # the flags set that one too
        torch.set_num_threads(before if threads is None else threads)
        try:
            with torch.backends.mkldnn.flags(enabled=uses_mkldnn), torch.inference_mode():
                yield torch
        finally:
            torch.set_num_threads(before)

"""`python -m benchmarks [matmul|forward|simulate|large] [part …]`: the benchmarks in turn, or the parts of one."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded: ratios are of one core with one core

from benchmarks import bench_forward, bench_large, bench_matmul, bench_simulate

BENCHMARKS = {"matmul": bench_matmul.main, "forward": bench_forward.main, "simulate": bench_simulate.main}
ON_DEMAND = {"large": bench_large.main}  # writes 2.2 GB


def main(words: list[str]) -> int:
    """Run what the words name, or everything."""
    known = BENCHMARKS | ON_DEMAND
    if words and words[0] not in known:
        print(f"Unknown benchmark {words[0]!r}. Known: {', '.join(known)}.", file=sys.stderr)
        return 2
    for name in words[:1] or BENCHMARKS:
        print(f"\n==== {name}")
        known[name](words[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

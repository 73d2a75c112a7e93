"""Digests of whole runs over a grid of recipes: `python tests/golden_grid.py [FILE...]` prints what differs.

A grid file (tests/data/golden/*.json) names cases: model, recipe, prompt tokens, steps, and the digest and tokens that
they gave. The script needs the package and nothing else, so it runs in any Python that has NumPy and ml_dtypes: the
tests start it with SIMD dispatch cut, another BLAS core, or more workers. Exit 0: every digest is the same; 1: some
are not. `--write` puts in what this machine gives, for a change that is meant to move bits; a test never does that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "data" / "golden"
SCHEMA = "softfloat-llm/golden-grid/1"


def cases_of(path):
    """The grid that a file holds: case name -> case."""
    grid = json.loads(Path(path).read_text())
    assert grid["schema"] == SCHEMA, path
    return grid["cases"]


def result_of_case(case, *, crew=None):
    """What one case gives, run here and now: the logits' digest, the tokens, the digest of all sums and outputs.

    Logits of a narrow format hide most of what a change in a sum does; the sums themselves do not.
    """
    from softfloat_llm.runs import simulate

    question = {key: case[key] for key in ("model", "recipe", "tokens", "steps")}
    run = simulate(**question, taps=("*.acc", "*.out"), crew=crew)
    return {"digest": run.digest, "generated": list(run.generated), "taps": taps_digest(run)}


def digest_of_case(case, *, crew=None):
    """The digest of one case's logits."""
    return result_of_case(case, crew=crew)["digest"]


def taps_digest(run):
    """sha256 over the names and digests of a run's taps, in the order of their names."""
    from softfloat_llm.digests import array_digest

    lines = [f"{name} {array_digest(run.arrays[name], run.format_of_tap(name))}" for name in sorted(run.arrays)]
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def differences(cases, *, crew=None):
    """One line for each case whose result is not the one that it names."""
    for name, case in cases.items():
        found = result_of_case(case, crew=crew)
        for key, value in found.items():
            if case[key] != value:
                yield f"{name}: {key} {value}, expected {case[key]}"


def write(path):
    """Put the results of this machine into a grid file."""
    grid = json.loads(path.read_text())
    for case in grid["cases"].values():
        case.update(result_of_case(case))
    path.write_text(text_of(grid))


def text_of(grid):
    """The file's form: one case a line."""
    head = {key: value for key, value in grid.items() if key != "cases"}
    cases = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in grid["cases"].items())
    return json.dumps(head, indent=1)[:-2] + ',\n "cases": {\n' + cases + "\n }\n}\n"


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[FOLDER / "tiny.json"], metavar="FILE")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(words)
    if asked.write:
        for path in asked.files:
            write(path)
        return 0
    from softfloat_llm.numerics.crew import Crew

    with Crew(asked.workers, asked.backend, least=0) as crew:
        lines = [line for path in asked.files for line in differences(cases_of(path), crew=crew)]
    print("\n".join(lines) if lines else "every digest is the same")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())

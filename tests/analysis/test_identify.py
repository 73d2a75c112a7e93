"""Every candidate of every grid is found again from its own output, and what else fits gives really the same bits."""

from __future__ import annotations

import json
import math
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from softfloat_llm.analysis import identify as module
from softfloat_llm.analysis.grids import Candidate, candidates
from softfloat_llm.analysis.identify import Values, identify
from softfloat_llm.analysis.identify_facts import facts_of, outputs_of, storages_of
from softfloat_llm.errors import ArrayError, FormatError, WordError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.carriers import widen
from softfloat_llm.numerics.formats import CARRIERS
from softfloat_llm.numerics.rounding import round_to
from softfloat_llm.operations import OPERATIONS, evaluate, operation_of
from tests.oracle import assert_same, differs, hardware


def drawn(shape, storage, seed, spread=2):
    """Numbers of several binades, so that orders and accumulators give different sums."""
    rng = np.random.default_rng(seed)
    return round_to(rng.normal(size=shape) * 2.0 ** rng.integers(-spread, spread + 1, shape), storage)


INPUTS = {
    "sum": {"x": drawn((6, 40), "bf16", 1, 6)},
    "sum f32": {"x": drawn((4, 24), "f32", 2, 6)},
    "dot": {"a": drawn((6, 40), "bf16", 3), "b": drawn((6, 40), "bf16", 4)},
    "dot f16": {"a": drawn((5, 33), "f16", 5), "b": drawn((5, 33), "f16", 6)},
    "matmul e4m3": {"a": drawn((3, 64), "e4m3fn", 7), "b": drawn((64, 3), "e4m3fn", 8)},
    "matmul": {"a": drawn((3, 24), "f32", 9), "b": drawn((24, 3), "f32", 10), "init": drawn((3, 3), "bf16", 11)},
    "linear": {"x": drawn((3, 40), "f16", 12), "weight": drawn((4, 40), "f16", 13), "bias": drawn((4,), "f16", 14)},
    "norm": {"x": drawn((4, 48), "bf16", 15, 1), "weight": drawn((48,), "bf16", 16, 1)},
    "norm with a residual": {
        "x": drawn((4, 48), "bf16", 17, 1), "residual": drawn((4, 48), "bf16", 18, 4),
        "weight": drawn((48,), "bf16", 19), "eps": np.array(1e-5),
    },
    "softmax": {"x": drawn((5, 37), "f16", 20, 1)},
    "silu": {"x": drawn((4, 37), "f32", 21, 1)},
    "rope": {
        "x": drawn((6, 2, 16), "bf16", 22, 1), "cos": drawn((6, 8), "f32", 23, 1), "sin": drawn((6, 8), "f32", 24, 1),
    },
    "rope with a table": {
        "x": drawn((9, 2, 16), "f32", 25, 1), "positions": np.arange(40, 400, 40), "theta": np.array(1e4),
    },
}  # fmt: skip
STEP = {
    "sum f32": 5, "dot": 2, "dot f16": 7, "matmul e4m3": 17, "matmul": 11, "linear": 11, "norm": 37,
    "norm with a residual": 97, "softmax": 11, "rope with a table": 31,
}  # fmt: skip
"""Of a large grid every so many-th candidate; of the others every one."""
OUTPUTS = 8  # of a case: so many different ones, evenly chosen, are identified


@cache
def grid_of(case):
    """The candidates of a case, for every output format that the operands could have."""
    name = case.split(" ", maxsplit=1)[0]
    operation, arrays = operation_of(name), INPUTS[case]
    shape = operation.shape(arrays)
    found = []
    storage = next(iter(arrays.values())).dtype
    for out in dict.fromkeys(("float32", storage)):
        facts = facts_of(operation, arrays | {"out": np.full(shape.out, 1 / 3, out)}, shape)
        found += candidates(operation, facts)
    return tuple(dict.fromkeys(found))[:: STEP.get(case, 1)]


@cache
def outputs(case):
    name = case.split(" ", maxsplit=1)[0]
    return [evaluate(name, INPUTS[case], dict(candidate.words)) for candidate in grid_of(case)]


def in_carrier(values):
    return values if values.dtype in CARRIERS else widen(values)


@pytest.fixture
def once(monkeypatch):
    """Candidates are evaluated once for each sample, whatever output they are held against."""
    made = {}
    plain = module.Values

    def kept(operation, sample, terms):
        key = (operation.name, terms, *(x.tobytes() for name, x in sample.items() if name != "out"))
        return made.setdefault(key, plain(operation, sample, terms))

    monkeypatch.setattr(module, "Values", kept)


@pytest.mark.parametrize("case", INPUTS)
def test_what_is_made_once_for_several_candidates_is_what_each_of_them_gives(case):
    """`Values` leaves the last rounding to the end, and takes orders of one tree together."""
    name = case.split(" ", maxsplit=1)[0]
    shape = operation_of(name).shape(INPUTS[case])
    values = Values(operation_of(name), INPUTS[case], shape.terms)
    for candidate, right in zip(grid_of(case), outputs(case), strict=True):
        assert_same(widen(values(candidate)).reshape(right.shape), widen(right), str(candidate))


@pytest.mark.parametrize("case", INPUTS)
def test_a_candidate_is_among_the_fits_of_its_own_output_and_all_fits_are_bit_equal(case, once):
    """That it is so for every candidate follows, as what each gives is what the search compares (the test above)."""
    name = case.split(" ", maxsplit=1)[0]
    every = grid_of(case)
    assert len(every) > 20 or name in ("silu", "rope")
    wide = [widen(out) for out in outputs(case)]
    keys = [np.where(np.isnan(w), np.nan, w).tobytes() for w in wide]
    distinct = list(dict.fromkeys(keys))
    assert len(distinct) > 4 or name == "rope"
    for key in distinct[:: max(1, len(distinct) // OUTPUTS)]:
        place = keys.index(key)
        candidate, out = every[place], outputs(case)[place]
        found = identify(name, INPUTS[case] | {"out": in_carrier(out)}, grid=every)
        fits = {fit.candidate for fit in found.fits}
        assert candidate in fits
        assert fits == {other for other, k in zip(every, keys, strict=True) if k == key}
        assert all(fit.equal == fit.checked == out.size for fit in found.fits)


@pytest.mark.parametrize("case", ["dot", "softmax", "silu", "rope"])
def test_the_declared_grid_is_searched_without_being_told(case):
    name = case.split(" ", maxsplit=1)[0]
    place = len(grid_of(case)) // 3
    found = identify(name, INPUTS[case] | {"out": in_carrier(outputs(case)[place])})
    assert grid_of(case)[place] in {fit.candidate for fit in found.fits}


def test_the_grid_holds_every_word_of_every_option_of_a_site():
    for name, site in (("norm", "norm.input"), ("silu", "mlp.act"), ("rope", "attn.rope")):
        from softfloat_llm.site_options import Words
        from softfloat_llm.sites import SITES

        case = "norm with a residual" if name == "norm" else name
        operation, arrays = operation_of(name), INPUTS[case]
        shape = operation.shape(arrays)
        facts = facts_of(operation, arrays | {"out": np.full(shape.out, 1 / 3, np.float32)}, shape)
        tried = candidates(operation, facts)
        for key, option in SITES[site].options.items():
            if isinstance(option, Words):
                assert {candidate.word(key) for candidate in tried} == set(option.words), (site, key)


# --- real instructions ------------------------------------------------------------------------------------------------


def bf16_of(bits):
    return bits.view(ml_dtypes.bfloat16)


def words_of(found):
    return [dict(fit.candidate.words) for fit in found.fits]


def test_tdpbf16ps_is_recognised_by_its_results_alone():
    z = hardware("amx_bf16")
    a, b, c, y = (z[f"normal_k64_{x}"][0] for x in "abcy")
    arrays = {"a": bf16_of(a), "b": bf16_of(b).T, "init": c.view(np.float32), "out": y.view(np.float32)}
    found = identify("matmul", arrays)
    orders = {w["order"] for w in words_of(found)}
    assert "blocked:32 > lanes:2" in orders
    assert all(order.endswith("blocked:32 > lanes:2") for order in orders)
    assert (found.settled["acc"], found.settled["product"]) == ("f32", "exact")


@pytest.mark.parametrize(("ending", "order"), [("_seq", "swap:2"), ("_s16_halve", "lanes:16x2 > swap:2")])
def test_chains_of_vdpbf16ps_are_recognised(ending, order):
    z = hardware("bf16_dp")
    a, b = bf16_of(z["normal_k64_a"]), bf16_of(z["normal_k64_b"])
    found = identify("matmul", {"a": a, "b": b.T, "out": z[f"normal_k64{ending}"].view(np.float32)})
    assert order in {w["order"] for w in words_of(found)}
    assert all(w["acc"] == "f32" for w in words_of(found))
    assert len(found.fits) < 6


def test_flushing_is_recognised_where_it_matters():
    z = hardware("bf16_dp")
    a, b = bf16_of(z["underflow_k64_a"]), bf16_of(z["underflow_k64_b"])
    arrays = {"a": a, "b": b.T, "out": z["underflow_k64_seq"].view(np.float32)}
    found = identify("matmul", arrays, known={"product": "exact", "acc": "f32"})
    assert found.settled["subnormals"] == "ftz+daz"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("seq_fma_rz", {"product": "exact", "acc": "f16", "order": "seq", "rounding": "toward_zero"}),
        ("s32_fma_pair", {"product": "exact", "acc": "f16", "order": "lanes:32:adj"}),
    ],
)
def test_the_orders_and_roundings_of_real_f16_chains_are_recognised(ending, words):
    z = hardware("f16_dot")
    a, b, out = z["normal_k64_a"].view(np.float16), z["normal_k64_b"].view(np.float16), z[f"normal_k64_{ending}"]
    out = out.view(np.float16 if out.dtype == np.uint16 else np.float32)
    found = identify("matmul", {"a": a, "b": b.T, "out": out})
    assert words.items() <= dict(found.fits[0].candidate.words).items()
    assert all(w["acc"] == words["acc"] and w["product"] == words["product"] for w in words_of(found))


def test_a_real_tensor_core_is_recognised():
    from tests import test_gpu as gpu

    if not gpu.DATA.exists():
        pytest.skip("no results of real GPUs")
    storages = {"fp16": "f16", "tf32": "f32", "E4M3": "e4m3fn"}
    for case in (("H100", "bf16", "f32"), ("V100", "fp16", "f32"), ("A100", "tf32", "f32"), ("B200", "E4M3", "f16")):
        a, b, c = gpu.operands(*case)
        arrays = {"a": a, "b": b, "init": c, "out": gpu.wanted(*case)}
        found = identify("dot", arrays, known={"storage": storages.get(case[1], "bf16"), "product": "exact"})
        orders = [w["order"] for w in words_of(found)]
        assert f"fused:{gpu.unit_of(*case)}" in orders
        assert len(orders) < 8, (case, orders)


# --- cases whose answer is known --------------------------------------------------------------------------------------

X = [0.8896484375, 0.767578125, 0.712890625, 0.76318359375, 0.5224609375]
Y = [0.76416015625, 0.82861328125, 0.99169921875, 0.5947265625, 0.61865234375]
TABLE = {"cos": [[0.9609375]], "sin": [[-0.279296875]]}


@pytest.mark.parametrize(
    ("operation", "arrays", "out", "key", "words"),
    [
        ("sum", {"x": [256, 1, 1]}, 256, "acc", {"bf16"}),
        ("sum", {"x": [256, 1, 1]}, 258, "order", None),
        ("sum", {"x": [2**24] + [1] * 7}, 16777216, "order", {"seq"}),
        ("sum", {"x": [60000, 60000, -60000]}, 60000, "acc", None),
        ("sum", {"x": [60000, 60000, -60000]}, math.inf, "acc", {"f16"}),
        ("dot", {"a": X, "b": Y}, 2.796875, "acc", {"f16"}),
        ("dot", {"a": [256], "b": [256]}, math.inf, "product", {"f16"}),
        ("rope", {"x": [[[1, 1.5]]], **TABLE}, [[[1.375, 1.15625]]], "form", {"each"}),
        ("rope", {"x": [[[1, 1.5]]], **TABLE}, [[[1.3828125, 1.1640625]]], "form", {"once", "fma"}),
    ],
)  # fmt: skip
def test_small_sums_that_people_met(operation, arrays, out, key, words):
    given = {name: np.asarray(x, np.float64) for name, x in arrays.items()} | {"out": np.asarray(out, np.float64)}
    found = identify(operation, given)
    assert found.fits
    if words is not None:
        assert {
            fit.candidate.word(key) for fit in found.fits if fit.candidate.word("storage") in ("bf16", "f16")
        } & words
    for fit in found.fits[:5]:
        assert_same(widen(evaluate(operation, given | {}, dict(fit.candidate.words))), np.asarray(out, np.float64))


def test_statistics_in_f16_are_told_by_their_overflow():
    x, weight, out = (np.array(v, np.float16) for v in ([[300] * 4], [1] * 4, [[0] * 4]))
    found = identify("norm", {"x": x, "weight": weight, "out": out, "eps": np.array(1e-5)})
    assert found.fits
    assert all("f16" in (fit.candidate.word("acc"), fit.candidate.word("compute")) for fit in found.fits)


# --- what the data say ------------------------------------------------------------------------------------------------


def test_what_is_known_leaves_fewer_candidates():
    arrays = INPUTS["dot"] | {"out": outputs("dot")[0]}
    found = identify("dot", arrays, known={"acc": "f32", "order": "seq"})
    assert {(fit.candidate.word("acc"), fit.candidate.word("order")) for fit in found.fits} == {("f32", "seq")}
    assert found.tried < 10
    with pytest.raises(WordError, match=r"No candidate has acc=f23. Did you mean 'f32'"):
        identify("dot", arrays, known={"acc": "f23"})
    with pytest.raises(FormatError):
        identify("dot", arrays, known={"storage": "bf61"})
    with pytest.raises(WordError, match="No candidate has accumulator=f32"):
        identify("dot", arrays, known={"accumulator": "f32"})


def test_storages_are_their_own_format_or_those_that_hold_the_values():
    assert storages_of([np.ones(3, np.float16)]) == ("f16",)
    assert storages_of([np.array([1.0, 257.0])]) == ("f16",)
    assert storages_of([np.array([1.0, 1e38], np.float32)]) == ("f32", "tf32", "bf16", "f16")
    assert storages_of([np.array([1.0, 2.0**100])]) == ("bf16",)
    assert storages_of([np.array([1.0])]) == ("bf16", "f16")
    assert outputs_of(np.array([0.1], np.float32)) == ("f32",)
    assert outputs_of(np.array([0.5], np.float32)) == ("bf16", "f16", "f32")
    assert outputs_of(np.array([np.nan, np.inf])) == ("bf16", "f16", "f32")


def test_a_large_output_is_checked_in_parts_and_says_how_much():
    rng = np.random.default_rng(5)
    x, w = round_to(rng.normal(size=(300, 64)), "bf16"), round_to(rng.normal(size=(400, 64)), "bf16")
    out = evaluate(
        "linear", {"x": x, "weight": w}, {"storage": "bf16", "acc": "f32", "order": "lanes:4", "output": "f32"}
    )
    found = identify("linear", {"x": x, "weight": w, "out": out})
    assert found.elements == 120_000
    assert 60_000 <= found.checked <= 120_000
    assert "lanes:4" in {fit.candidate.word("order") for fit in found.fits}
    assert f"{found.checked} of 120000 elements" in str(found) or found.checked == found.elements


def test_one_wrong_element_among_many_is_found_in_the_end():
    rng = np.random.default_rng(6)
    x = round_to(rng.normal(size=(40, 64)), "bf16")
    out = evaluate("silu", {"x": x}, {"storage": "bf16", "output": "bf16"}).copy()
    out[39, 63] = out[39, 63] + ml_dtypes.bfloat16(1)
    found = identify("silu", {"x": x, "out": out})
    assert not found.fits
    assert found.nearest[0].equal == found.nearest[0].checked - 1
    assert found.nearest[0].miss.index == (39, 63)
    assert "None of" in str(found)


def test_an_output_of_something_else_has_a_nearest_candidate_and_no_fit():
    rng = np.random.default_rng(7)
    found = identify("dot", {"a": rng.normal(size=(4, 9)), "b": rng.normal(size=(4, 9)), "out": rng.normal(size=4)})
    assert not found.fits
    assert len(found.nearest) == 5
    assert "no candidate can fit" in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_nan_infinities_and_negative_zeros_are_compared_as_they_are():
    x = np.array([[np.nan, 1.0], [np.inf, -np.inf], [-0.0, 0.0], [-0.0, -0.0]], np.float32)
    out = reduce.sum(x, "storage=f32")
    found = identify("sum", {"x": x, "out": out})
    assert found.fits
    flipped = out.copy()
    flipped[2] = -0.0
    assert not identify("sum", {"x": x, "out": flipped}).fits


@pytest.mark.parametrize(
    ("operation", "arrays", "said"),
    [
        ("sofmax", {"x": np.ones(3), "out": np.ones(3)}, "Did you mean 'softmax'"),
        ("dot", {"a": np.ones(3), "b": np.ones(3)}, "give an array 'out'"),
        ("dot", {"a": np.ones(3), "out": np.ones(1)}, "needs an array 'b'"),
        ("dot", {"a": np.ones(3), "b": np.ones(4), "out": np.ones(1)}, "of one last axis"),
        ("dot", {"a": np.ones((2, 3)), "b": np.ones((5, 3)), "out": np.ones(1)}, "of one last axis"),
        ("dot", {"a": np.ones(3), "b": np.ones(3), "c": np.ones(3), "out": np.ones(1)}, "takes no array 'c'"),
        ("matmul", {"a": np.ones((2, 3)), "b": np.ones((2, 3)), "out": np.ones((2, 2))}, "a (M, K) and b (K, N)"),
        ("linear", {"x": np.ones((2, 3)), "weight": np.ones((4, 3)), "out": np.ones((4, 2))}, "gives the shape (2, 4)"),
        ("norm", {"x": np.ones((2, 3)), "weight": np.ones(2), "out": np.ones((2, 3))}, "weight (D,)"),
        ("rope", {"x": np.ones((2, 1, 3)), "positions": np.ones(2), "out": np.ones((2, 1, 3))}, "C even"),
        ("rope", {"x": np.ones((2, 1, 4)), "cos": np.ones((2, 2)), "out": np.ones((2, 1, 4))}, "cos, sin"),
        ("silu", {"x": np.array(1.0), "out": np.array(1.0)}, "x (..., N)"),
        ("silu", {"x": np.ones(0), "out": np.ones(0)}, "nothing to hold"),
        ("silu", {"x": np.array([1j]), "out": np.array([1.0])}, "real numbers"),
        ("silu", {"x": np.array(["a"]), "out": np.array([1.0])}, "real numbers"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused_in_words(operation, arrays, said):
    with pytest.raises(ArrayError) as raised:
        identify(operation, arrays)
    assert said in str(raised.value)


def test_sums_of_nothing_and_of_one_term_are_no_trouble():
    assert identify("sum", {"x": np.ones((3, 0), np.float32), "out": np.zeros(3, np.float32)}).fits
    assert identify("dot", {"a": np.array([3.0]), "b": np.array([2.0]), "out": np.array([6.0])}).fits


def test_tables_of_cosines_may_hold_each_twice():
    x, c, s = drawn((4, 2, 8), "bf16", 31), drawn((4, 4), "bf16", 32), drawn((4, 4), "bf16", 33)
    words = {"storage": "bf16", "output": "bf16"}
    right = evaluate("rope", {"x": x, "cos": c, "sin": s}, words)
    for twice in (lambda t: np.concatenate([t, t], axis=1), lambda t: np.repeat(t, 2, axis=1)):
        assert_same(widen(evaluate("rope", {"x": x, "cos": twice(c), "sin": twice(s)}, words)), widen(right))


def test_every_operation_cuts_to_rows_that_give_what_the_whole_gives():
    for case, arrays in INPUTS.items():
        operation = operation_of(case.split(" ", maxsplit=1)[0])
        shape = operation.shape(arrays)
        words = dict(grid_of(case)[0].words)
        whole = evaluate(operation.name, arrays, words)
        rows, columns = np.arange(0, shape.rows, 2), np.arange(0, shape.columns, 2)
        cut = operation.cut(arrays | {"out": whole}, rows, columns)
        part = evaluate(operation.name, {k: x for k, x in cut.items() if k != "out"}, words)
        assert_same(widen(part), widen(cut["out"]).reshape(part.shape), case)
        assert part.size <= whole.size


def test_the_plainest_fit_comes_first():
    found = identify("dot", {"a": np.array([256.0, 1, 1]), "b": np.ones(3), "out": np.array([256.0])})
    first = dict(found.fits[0].candidate.words)
    assert (first["storage"], first["acc"], first["order"], first["output"]) == ("bf16", "bf16", "seq", "bf16")
    odd = [fit.candidate.oddness for fit in found.fits]
    assert odd == sorted(odd)
    assert odd[0] == 0


def test_the_answer_is_short_and_its_json_plain():
    found = identify("dot", INPUTS["dot"] | {"out": outputs("dot")[0]})
    assert len(str(found).splitlines()) < 25
    assert len(found.text(verbose=True)) > len(str(found))
    assert found._repr_html_().startswith("<div>")
    body = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert body["schema"] == "softfloat-llm/identify/1"
    assert str(Candidate("dot", (("acc", "f32"), ("order", "seq")))) == "acc=f32,order=seq"
    assert set(OPERATIONS) == {"sum", "dot", "matmul", "linear", "norm", "rope", "softmax", "silu"}
    assert not differs(np.zeros(1), np.zeros(1)).any()

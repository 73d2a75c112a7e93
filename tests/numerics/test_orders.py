"""Orders: text, trees, files; and each order reveals itself to the mask probe."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from softfloat_llm.errors import OrderError
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import bf16
from softfloat_llm.numerics.orders import Order, permutation
from softfloat_llm.numerics.trees import Chain, Join, Rounded, Tree, read_tree, write_tree
from tests.oracle import ExactMachine, sum_in_order

TABLE = [
    "seq", "reverse", "pairwise", "tree:adj", "tree:half", "lanes:1", "lanes:2", "lanes:3", "lanes:8", "lanes:8:adj",
    "lanes:5:seq", "lanes:32", "blocked:1", "blocked:4", "blocked:32", "split-k:1", "split-k:2", "split-k:5", "perm:0",
    "perm:7", "blocked:32 > lanes:2", "blocked:4 > pairwise", "lanes:4:adj > tree:half", "split-k:3 > reverse",
    "perm:3 > lanes:4", "blocked:9 > blocked:4 > lanes:2", "perm:1 > split-k:2 > perm:2 > pairwise", "swap:2",
    "swap:3 > lanes:2", "lanes:3x2 > swap:2", "lanes:4x3:adj", "blocked:8 > swap:2",
]  # fmt: skip


def nested(n, text="0", left=True):
    """A tree file of joins, each inside the next, as deep as it has terms."""
    parts = [f'{{"join": [{"" if left else f"{k}, "}' for k in range(n - 1, 0, -1)]
    ends = [f", {k}]}}" if left else "]}" for k in range(1, n)]
    return f'{{"schema": "softfloat-llm/tree/1", "n": {n}, "tree": {"".join(parts)}{text}{"".join(ends)}}}'


# --- Text -----------------------------------------------------------------------------------------------------------


STORED = [
    "blocked:4:bf16", "blocked:3:bf16 > lanes:2", "lanes:2 > blocked:2:bf16", "blocked:1:f16",
    "blocked:6:f16 > pairwise", "lanes:4:bf16", "lanes:3:seq:f16", "lanes:8:adj:bf16 > pairwise",
    "blocked:16 > lanes:16:f16",
]  # fmt: skip


@pytest.mark.parametrize("text", [*TABLE, *STORED, "split-k:2:bf16", "split-k:4:f16 > lanes:8"])
def test_an_order_parses_back_from_what_it_prints(text):
    order = Order(text)
    assert str(order) == text
    assert Order(str(order)) == order
    assert hash(Order(str(order))) == hash(order)
    assert Order(order) == order


def test_spaces_around_the_arrow_do_not_matter():
    assert str(Order(" blocked:4>lanes:2 ")) == "blocked:4 > lanes:2"


def test_different_orders_differ():
    assert len({Order(text) for text in TABLE}) == len(TABLE)
    assert Order("lanes:8") == Order("lanes:8:half")
    assert Order("lanes:8") != "lanes:8"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sqe", "Did you mean 'seq'?"), ("", "Unknown order ''"), ("lanes", "lanes:W"), ("lanes:0", "0 is below 1"),
        ("lanes:-1", "'-1' is not a whole number"), ("lanes:٣", "not a whole number"), ("lanes:99999", "at most 65536"),
        ("lanes:4x0", "0 is below 1"), ("lanes:4x", "after 'x'"), ("swap", "swap:N"), ("swap:0", "0 is below 1"),
        ("lanes:8:left", "half, adj, seq"), ("lanes:8:f16:half", "too many arguments"),
        ("blocked:4:f16:2", "too many arguments"), ("seq:1", "takes no argument"),
        ("split-k:2:b16", "stored in a format"), ("tree", "takes an argument"), ("tree:left", "tree:adj, tree:half or"),
        ("blocked:2:b16", "stored in a format"),
        ("lanes:8 > pairwis", "Did you mean 'pairwise'?"), ("pairwise > seq", "Before '>' stands one of"),
        ("seq > seq", "'seq' has no blocks"), ("blocked:4 >", "Unknown order ''"), ("fused", "fused:UNIT"),
        ("tree:@/no/such/file", "No such file"), ("perm:x", "not a whole number"),
    ],
)  # fmt: skip
def test_a_malformed_order_is_refused_saying_what_was_expected(text, says):
    with pytest.raises(OrderError) as caught:
        Order(text)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("word", [None, 8, ["seq"]])
def test_what_is_no_text_is_no_order(word):
    with pytest.raises(OrderError, match="named by a text"):
        Order(word)


def test_shape_free_orders_are_those_that_zeros_at_the_end_do_not_change():
    free = [text for text in TABLE if Order(text).is_shape_free]
    bound = ("pairwise", "tree", "split-k", "perm", "swap:3 > lanes")
    assert free == [t for t in TABLE if not any(word in t for word in bound)]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(37).astype(np.float16)
    for text in free:
        at = f"storage=f16,acc=f16,order={text}"
        assert reduce.sum(x, at) == reduce.sum(np.concatenate([x, np.zeros(11, np.float16)]), at), text


# --- Trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n", "tree"),
    [
        ("seq", 4, Chain((0, 1, 2, 3))),
        ("reverse", 3, Chain((2, 1, 0))),
        ("pairwise", 5, Join((Join((Join((0, 1)), 2)), Join((3, 4))))),
        ("pairwise", 1, 0),
        ("tree:adj", 5, Join((Join((Join((0, 1)), Join((2, 3)))), 4))),
        ("tree:half", 5, Join((Join((Join((0, 4)), 2)), Join((1, 3))))),
        ("lanes:2", 5, Join((Chain((0, 2, 4)), Chain((1, 3))))),
        ("lanes:4", 2, Join((Join((Chain((0,)), Chain(()))), Join((Chain((1,)), Chain(())))))),
        ("lanes:1", 2, Chain((0, 1))),
        ("blocked:2", 5, Chain((Chain((0, 1)), Chain((2, 3)), Chain((4,))))),
        ("blocked:2 > pairwise", 3, Chain((Join((0, 1)), Join((2,))))),
        ("split-k:2", 5, Join((Chain((0, 1, 2)), Chain((3, 4))))),
        ("blocked:2:bf16", 3, Chain((Chain((0, 1)), Chain((2,))), bf16)),
        ("split-k:2:bf16", 2, Join((Rounded(Chain((0,)), bf16), Rounded(Chain((1,)), bf16)))),
        ("split-k:4", 5, Join((Chain((0, 1)), Chain((2, 3)), Chain((4,))))),
        ("swap:2", 5, Chain((1, 0, 3, 2, 4))),
        ("swap:2 > pairwise", 3, Join((Join((1, 0)), 2))),
        ("lanes:2x2 > swap:2", 7, Join((Chain((1, 0, 5, 4)), Chain((3, 2, 6))))),
        ("blocked:4 > lanes:2", 4, Chain((Join((Chain((0, 2)), Chain((1, 3)))),))),
    ],
)
def test_the_tree_is_that_of_the_table(text, n, tree):
    assert Order(text).tree(n).root == tree


@pytest.mark.parametrize("text", [*TABLE, *STORED])
def test_every_term_stands_in_the_tree_once(text):
    for n in range(71):
        assert sorted(Order(text).tree(n).leaves) == list(range(n))


def test_a_tree_prints_its_brackets():
    assert str(Order("split-k:2").tree(5)) == "(0+1+2)+(3+4)"
    assert str(Order("split-k:2:bf16").tree(3)) == "bf16(0+1)+bf16(2)"
    assert str(Order("blocked:2:bf16").tree(5)) == "bf16(bf16(bf16(0+1)+(2+3))+(4))"
    assert str(Order("lanes:2:bf16").tree(5)) == "bf16(bf16(bf16(bf16(0)+2)+4)+bf16(bf16(1)+3))"
    assert str(Order("pairwise").tree(1)) == "0"
    assert repr(Order("pairwise").tree(3)) == "Tree(3, (0+1)+2)"


def test_trees_are_equal_where_the_same_additions_are_done():
    assert Order("split-k:2").tree(4) == Tree(4, Join((Chain((0, 1)), Chain((2, 3)))))
    assert Tree(3, Join((Join((0, 1)), 2))) == Tree(3, Join((0, 1, 2)))
    assert Tree(3, Join((0, 1, 2))) != Tree(3, Chain((0, 1, 2)))
    assert len({Order("seq").tree(3), Order("lanes:1").tree(3)}) == 1


def test_a_negative_number_of_terms_is_refused():
    with pytest.raises(OrderError, match="cannot be negative"):
        Order("seq").tree(-1)


# --- The mask probe -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*TABLE, *(text for text in STORED if ":bf16" in text)])
def test_every_order_reveals_itself_to_the_mask_probe(text):
    """+M at i, -M at j, ones elsewhere: what survives counts the leaves outside the smallest subtree with i and j."""
    huge = 2.0**100
    for n in (2, 3, 5, 8, 11, 16, 19):
        pairs = list(itertools.combinations(range(n), 2))
        probes = np.ones((len(pairs), n), np.float32)
        for row, (i, j) in zip(probes, pairs, strict=True):
            row[i], row[j] = huge, -huge
        tree = Order(text).tree(n)
        want = [tree.survivors(i, j) for i, j in pairs]
        assert reduce.sum(probes, f"storage=f32,acc=f32,order={text}").tolist() == want
        assert want == [tree.survivors(j, i) for i, j in pairs]
        machine = ExactMachine("f32")
        for row, counted in list(zip(probes.tolist(), want, strict=True))[:: 1 + len(pairs) // 12]:
            assert sum_in_order(text, row, machine, permute=permuted) == counted


def permuted(terms, seed):
    return [terms[i] for i in permutation(len(terms), seed)]


# --- Permutations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 7, 123_456_789, 999_999_999])
def test_permutation_is_one_for_every_length(seed):
    for n in (0, 1, 2, 17, 70, 1000):
        assert sorted(permutation(n, seed)) == list(range(n))


def splitmix64(n, seed):
    """SplitMix64 in Python integers, from the paper's constants; the seed spreads by an odd multiplier."""
    wrap = 2**64
    keys = []
    for k in range(1, n + 1):
        z = (k * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95) % wrap
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % wrap
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % wrap
        keys.append(z ^ (z >> 31))
    return sorted(range(n), key=keys.__getitem__)


def test_permutation_values_are_pinned():
    for n, seed in itertools.product((8, 70), (0, 1, 2, 999_999_999)):
        assert permutation(n, seed) == splitmix64(n, seed)
    assert permutation(8, 1) != permutation(8, 2)


# --- Tree files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*TABLE, "split-k:2:bf16", "split-k:1:f16"])
def test_a_tree_file_reads_back_and_sums_the_same_bits(text, tmp_path):
    x = np.random.default_rng(2).standard_normal(13).astype(np.float16)
    tree = Order(text).tree(13)
    write_tree(tree, tmp_path / "tree.json")
    back = read_tree(tmp_path / "tree.json")
    assert back.root == tree.root
    order = Order(f"tree:@{tmp_path / 'tree.json'}")
    assert Order(str(order)) == order
    assert order.tree(13) == tree
    assert reduce.sum(x, f"storage=f16,acc=f16,order={order}") == reduce.sum(x, f"storage=f16,acc=f16,order={text}")


@pytest.mark.parametrize("text", STORED)
def test_a_tree_file_says_what_a_blocked_sum_stores(text, tmp_path):
    """In the file it is a node of its own; the additions and roundings are the same."""
    x = np.random.default_rng(2).standard_normal((30, 13)).astype(np.float16)
    tree = Order(text).tree(13)
    write_tree(tree, tmp_path / "tree.json")
    assert read_tree(tmp_path / "tree.json") == tree
    assert tree != Order(text.replace(":f16", "").replace(":bf16", "")).tree(13)
    sums = [reduce.sum(x, f"storage=f16,acc=f32,output=f32,order={order}").tolist()
            for order in (text, f"tree:@{tmp_path / 'tree.json'}")]  # fmt: skip
    assert sums[0] == sums[1]


@pytest.mark.parametrize("inner", ["seq", "lanes:2", "pairwise"])
def test_a_blocked_sum_that_is_stored_in_its_accumulator_s_format_is_the_blocked_sum(inner):
    x = np.random.default_rng(3).standard_normal((30, 41)).astype(np.float32)
    texts = [f"blocked:8{stored} > {inner}" for stored in ("", ":f32", ":bf16")]
    plain, same, other = (reduce.sum(x, f"storage=f32,acc=f32,order={t}", init=0.25).tolist() for t in texts)
    assert plain == same != other


def test_partial_sums_that_are_stored_in_f16_round_once_a_block():
    """2048 + 1 + 1 in blocks of one term: each 2049 ties back to 2048 as it is stored; in f32 nothing is lost."""
    for stored, total in (("", 2050.0), (":f16", 2048.0)):
        assert reduce.sum([2048, 1, 1], f"storage=f16,acc=f32,output=f32,order=blocked:1{stored}") == total
    assert reduce.sum([2048, 1, 1], "storage=f16,acc=f32,output=f32,order=blocked:3:f16") == 2050.0


def test_a_tree_file_may_stand_inside_another_order(tmp_path):
    write_tree(Order("pairwise").tree(4), tmp_path / "tree.json")
    order = Order(f"blocked:4 > tree:@{tmp_path / 'tree.json'}")
    assert order.tree(8).root == Order("blocked:4 > pairwise").tree(8).root
    with pytest.raises(OrderError, match="sums 4 terms, but here there are 2"):
        order.tree(6)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "not one JSON object"), ("[]", "not one JSON object"), ("{", "not one JSON object"),
        ("{}}", "not one JSON object"),
        ('{"schema": "x", "n": 1, "tree": 0}', "schema"), ('{"schema": "softfloat-llm/tree/1", "tree": 0}', "schema"),
        ('{"schema": "softfloat-llm/tree/1", "n": true, "tree": 0}', "schema"),
        ('{"schema": "softfloat-llm/tree/1", "n": 2, "tree": 0}', "each of the terms 0 to 1"),
        ('{"schema": "softfloat-llm/tree/1", "n": 2, "tree": {"join": [0, 0]}}', "each of the terms"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": {"join": []}}', "a node is a number or an object"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": {"sum": [0]}}', "a node is a number or an object"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": "0"}', "a node is a number or an object"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": [0]}', "a node is a number or an object"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": 0.0}', "a node is a number or an object"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": {"round": "bf61", "node": 0}}', "Did you mean 'bf16'?"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": {"round": "bf16"}}', "a node is a number or an object"),
        ('{"schema": "softfloat-llm/tree/1", "n": 2, "tree": {"join": ["{0}", 1]}}', "unexpected"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": 0} 7', "not one JSON object"),
        ('{"schema": "softfloat-llm/tree/1" "n": 1, "tree": 0}', "delimiter"),
        ('{"schema": "softfloat-llm/tree/1", "n": 1, "tree": ' + "[" * 100_000 + "]" * 100_000 + "}", "recursion"),
    ],
)  # fmt: skip
def test_a_broken_tree_file_is_refused_with_its_path(body, says, tmp_path):
    path = tmp_path / "tree.json"
    path.write_text(body)
    with pytest.raises(OrderError) as caught:
        read_tree(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("is_left", [True, False])
def test_a_tree_of_5000_levels_does_not_meet_the_recursion_limit(is_left, tmp_path):
    path = tmp_path / "tree.json"
    path.write_text(nested(5000, left=is_left))
    order = Order(f"tree:@{path}")
    tree = order.tree(5000)
    assert str(tree).count("+") == 4999
    assert tree.survivors(0, 10) == 4989
    assert reduce.sum(np.ones(5000, np.float16), f"storage=f16,acc=f16,order={order}") == 2048.0
    write_tree(tree, tmp_path / "again.json")
    assert read_tree(tmp_path / "again.json") == tree
    assert hash(tree) == hash(read_tree(path))


@pytest.mark.parametrize("text", ["swap:8 > blocked:2", "swap:8 > lanes:3", "fused:16:10", "fused:4:16"])
def test_an_order_that_zeros_at_the_end_do_change_is_not_shape_free(text):
    assert not Order(text).is_shape_free
    a, b = np.random.default_rng(4).standard_normal((2, 400, 5)).astype(np.float16)
    longer = [np.concatenate([x, np.zeros((400, 16), np.float16)], axis=1) for x in (a, b)]
    one_more = [x[:, :6] for x in longer]
    at = f"storage=f16,acc=f32,output=f32,order={text}"
    moved = [reduce.dot(a, b, at) != reduce.dot(*pair, at) for pair in (longer, one_more)]
    assert np.any(moved)


@pytest.mark.parametrize(
    "text", [" > ".join(["swap:1"] * 3000), "vector:99999999", "ilp:999999999", "lanes:1500 > lanes:1500"]
)
def test_an_order_that_would_take_all_memory_is_refused(text):
    with pytest.raises(OrderError, match="at most"):
        Order(text)


def float32_dot(a, b, registers, lanes):
    """The loops of PyTorch's dot of halves, one float32 operation at a time (its products are exact there)."""
    n, step, wide = len(a), registers * lanes, 2 * lanes
    products = a.astype(np.float32) * b.astype(np.float32)
    main, tail = np.zeros((registers, lanes), np.float32), np.zeros(lanes, np.float32)
    whole = n - n % step
    for start in range(0, whole, step):
        main += products[start : start + step].reshape(registers, lanes)
    for start in range(whole, n - n % wide, lanes):
        tail += products[start : start + lanes]
    while len(main) > 1:
        main = main[: len(main) // 2] + main[len(main) // 2 :]
    total = halves(main[0]) + halves(tail)
    for product in products[n - n % wide :]:
        total += product
    return total


def halves(x):
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


@pytest.mark.parametrize("shape", [(8, 8), (4, 4), (2, 16)])
def test_dot_is_the_loop_over_registers_then_pairs_of_vectors_then_one_by_one(shape):
    rng = np.random.default_rng(64)
    at = f"storage=f16,acc=f32,output=f32,order=dot:{shape[0]}x{shape[1]}"
    for n in range(1, 201):
        a, b = (rng.standard_normal(n) * 2.0 ** rng.integers(-6, 7, n) for _ in range(2))
        a, b = a.astype(np.float16), b.astype(np.float16)
        assert reduce.dot(a, b, at) == float32_dot(a, b, *shape), n


def test_dot_of_whole_registers_is_their_lanes():
    assert Order("dot:8x8").tree(192) == Order("lanes:64").tree(192)
    assert Order("dot:8x8").tree(16) == Order("lanes:8").tree(16)
    assert str(Order("dot:2x2").tree(11)) == "(((0+4)+(2+6))+((1+5)+(3+7)))+8+9+10"


@pytest.mark.parametrize(
    ("text", "says"),
    [("dot:8", "registers and"), ("dot:8x8:seq", "too many"), ("dot:600x600", "at most"), ("dot", "dot:RxW")],
)
def test_a_dot_needs_registers_and_lanes(text, says):
    with pytest.raises(OrderError, match=says):
        Order(text)


# --- Libraries ------------------------------------------------------------------------------------------------------


def test_pairwise_over_eight_lanes_is_numpys_own_sum():
    """Of float32 terms that lose bits, at every length to 300 and around the halves of longer sums."""
    rng = np.random.default_rng(8)
    told_apart = 0
    for n in [*range(1, 301), 511, 512, 513, 1000, 1025]:
        x = np.ldexp(rng.uniform(-2, 2, (20, n)), rng.integers(-6, 7, (20, n))).astype(np.float32)
        theirs = np.sum(x, axis=-1)
        np.testing.assert_array_equal(reduce.sum(x, "storage=f32,acc=f32,order=pairwise:8"), theirs)
        told_apart += np.count_nonzero(reduce.sum(x, "storage=f32,acc=f32,order=seq") != theirs)
    assert told_apart > 3000


def test_a_term_that_enters_a_stored_chain_stays_unrounded_in_its_shape(tmp_path):
    tree = Tree(3, Chain((0, 1, 2), Order("lanes:2:bf16").levels[0].partial))
    write_tree(tree, tmp_path / "tree.json")
    a, b = np.float32([[3.0, 2.0**24 - 1, 1.0]]), np.float32([[-(2.0**24), 3.0, 0.0]])
    again = reduce.dot(a, b, f"storage=f32,acc=f32,order=tree:@{tmp_path / 'tree.json'}")
    assert again.tolist() == [-3.0]  # fma(2^24 - 1, 3, -3 * 2^24); the product alone is 3 * 2^24 - 4

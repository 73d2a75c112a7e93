"""Recipes: which setting wins, every form that a recipe is given in, what is refused and with which hint."""

from __future__ import annotations

import itertools
import tomllib

import pytest

from softfloat_llm.errors import FormatError, OrderError, PrecisionError, RecipeError, WordError
from softfloat_llm.recipe import Recipe, recipe_names, recipe_of, to_toml
from softfloat_llm.site_specs import Setting, settings_of
from softfloat_llm.sites import MATMUL, SITES, TAPPED

NORMS = ("norm.input", "norm.q", "norm.k", "norm.post_attention", "norm.final")


def _norms_with(path):
    """The norms that a fact of `norm.*` is of: those of single heads do not see the residual stream."""
    return [norm for norm in NORMS if not path.endswith(".takes") or norm not in ("norm.q", "norm.k")]


def word(recipe, place):
    """The word at SITE.KEY of a recipe in any form."""
    site, _, key = place.rpartition(".")
    return recipe_of(recipe).words()[site][key]


def in_file(folder, body, name="own.toml"):
    (folder / name).write_text(body)
    return folder / name


def tapped(recipe):
    """The words of each site that stores something."""
    return [words for site, words in recipe_of(recipe).words().items() if site in TAPPED]


# --- which setting wins -----------------------------------------------------------------------------------------------


def test_without_a_word_everything_is_f32_in_sequence():
    recipe = Recipe()
    assert recipe.name == "f32"
    for site, words in recipe.words().items():
        wanted = {"storage": "f32", "output": "f32", "acc": "f32", "order": "seq", "compute": "f32"}
        wanted |= {"product": "exact" if site in MATMUL else "f32"}
        wanted |= {"compute": "exact"} if site == "mlp.act_mul" else {}
        assert {k: w for k, w in words.items() if k in wanted} == {k: w for k, w in wanted.items() if k in words}


def test_storage_reaches_every_site_and_its_output_but_no_accumulator():
    recipe = recipe_of("storage=bf16")
    for words in tapped(recipe):
        assert words["storage"] == words.get("output", "bf16") == "bf16"
        assert words.get("acc", "f32") == "f32"
        assert words.get("compute", "f32") in ("f32", "exact")


@pytest.mark.parametrize("key", ["acc", "product", "order", "output"])
def test_the_flags_of_sums_speak_of_the_matrix_products_only(key):
    chosen = {"acc": "f16", "product": "bf16", "order": "lanes:8", "output": "f16"}[key]
    plain, changed = Recipe().words(), Recipe(**{key: chosen}).words()
    differing = {site for site in SITES if plain[site] != changed[site]}
    assert differing == set(MATMUL)
    assert {changed[site][key] for site in MATMUL} == {chosen}


def test_norms_and_softmax_stay_islands_unless_asked_and_star_asks_all():
    assert {word("f16,acc=f16", f"{site}.acc") for site in (*NORMS, "attn.softmax")} == {"f32"}
    assert word("f16,acc=f16,attn.softmax.acc=bf16", "attn.softmax.acc") == "bf16"
    assert {words["acc"] for words in recipe_of("f16,*.acc=f16").words().values() if "acc" in words} == {"f16"}


def test_rounding_and_subnormals_flags_reach_every_site():
    for words in tapped("storage=bf16,rounding=toward_zero,subnormals=ftz"):
        assert (words["rounding"], words["subnormals"]) == ("toward_zero", "ftz")


def test_the_kv_flag_sets_the_cache_and_nothing_else():
    differing = {(s, k): w for s, words in recipe_of("bf16,kv=e4m3fn").words().items() for k, w in words.items()
                 if recipe_of("bf16").words()[s][k] != w}  # fmt: skip
    assert differing == {("kv.k", "storage"): "e4m3fn", ("kv.v", "storage"): "e4m3fn"}
    assert word(Recipe(kv="f16"), "kv.v.storage") == "f16"


@pytest.mark.parametrize("spelling", ["storage=tf32", "TF32_TF32_F32"])
def test_tf32_is_how_matrix_products_take_f32_tensors_and_no_storage_between_sites(spelling):
    words = recipe_of(spelling).words()
    assert {words[site]["storage"] for site in MATMUL} == {"tf32"}
    assert {w.get("output", "f32") for w in words.values()} == {"f32"}
    assert {words[site]["storage"] for site in TAPPED if site not in MATMUL} == {"f32"}
    recipe_of(spelling).check_fit()


def test_in_one_table_the_narrower_selector_wins_whatever_the_order_of_the_lines():
    rows = ["*.acc=f16", "matmul.acc=bf16", "attn.acc=f64", "attn.scores.acc=exact"]
    for order in itertools.permutations(rows):
        words = Recipe(at=order).words()
        found = [words[s]["acc"] for s in ("norm.final", "lm_head", "attn.pv", "attn.softmax", "attn.scores")]
        assert found == ["f16", "bf16", "f64", "f64", "exact"]


def test_of_two_selectors_as_narrow_the_later_line_wins():
    assert word(Recipe(at=["linear.acc=f16", "matmul.acc=bf16"]), "lm_head.acc") == "bf16"
    assert word(Recipe(at=["matmul.acc=bf16", "linear.acc=f16"]), "lm_head.acc") == "f16"
    assert word(Recipe(at=["lm_head.acc=bf16", "lm_head.acc=f16"]), "lm_head.acc") == "f16"


def test_a_later_layer_wins_even_with_the_wider_selector():
    base = Recipe(at=["attn.softmax.acc=bf16"])
    assert word(Recipe(base=base, at=["*.acc=f16"]), "attn.softmax.acc") == "f16"
    assert word("candle-f16-cpu-neon,storage=bf16", "attn.softmax.storage") == "bf16"
    assert word("candle-f16-cpu-neon,acc=f32", "attn.q_proj.acc") == "f32"


def test_at_wins_over_the_flags_of_the_same_recipe():
    recipe = Recipe(storage="bf16", acc="f16", at={"lm_head.acc": "f32", "*.storage": "f16"})
    assert (word(recipe, "lm_head.acc"), word(recipe, "attn.pv.acc")) == ("f32", "f16")
    assert {words["storage"] for words in tapped(recipe)} == {"f16"}


def test_a_mode_of_one_stage_wins_over_the_mode_of_all():
    spec = recipe_of("bf16,*.rounding=toward_zero,lm_head.acc.rounding=ties_to_away").at("lm_head")
    assert spec.precision.rounding == ("toward_zero", "toward_zero", "ties_to_away", "toward_zero")
    assert recipe_of("f16,kv.overflow=saturate").at("kv.k").precision.overflow.storage == "saturate"


def test_a_site_alone_takes_a_format_for_storage_and_output():
    assert (word("bf16,lm_head=f32", "lm_head.storage"), word("bf16,lm_head=f32", "lm_head.output")) == ("f32", "f32")
    assert word("bf16,kv=f16", "kv.k.storage") == "f16"
    assert settings_of("kv.k", "f16") == [Setting("kv.k", "storage", "f16")]
    assert [str(s) for s in settings_of("rope.table", "f32")] == ["rope.table.storage=f32", "rope.table.output=f32"]


def test_the_terms_of_a_norm_and_of_a_softmax_are_rounded_to_compute_unless_product_says_otherwise():
    assert word("bf16,norm.compute=f16", "norm.input.product") == "f16"
    assert word("bf16,norm.compute=f16,norm.product=exact", "norm.input.product") == "exact"
    assert word("bf16", "attn.softmax.product") == "f32"


# --- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forms", [
    ["bf16", "storage=bf16", "storage=bf16,acc=f32", "BF16_BF16_F32", " bf16 "],
    ["f16,acc=f16", "F16_F16_F16", "storage=half,acc=fp16", "storage = f16 , acc = f16"],
    ["storage=f32", "F32_F32_F32", "storage=float32,*.order=seq"],
    ["f16,attn.softmax.acc=bf16", "storage=f16,attn.softmax.acc=bf16"],
    ["bf16,order=blocked:32 > lanes:2", "storage=bf16,matmul.order=blocked:32 > lanes:2"],
], ids=lambda forms: forms[0])  # fmt: skip
def test_these_forms_mean_the_same(forms):
    expansions = [recipe_of(form).words() for form in forms]
    assert all(words == expansions[0] for words in expansions)


def test_a_recipe_a_mapping_a_path_and_a_text_are_all_accepted(tmp_path):
    body = '[precision]\nstorage = "bf16"\n[site."attn.softmax"]\nacc = "bf16"\n'
    wanted = recipe_of("bf16,attn.softmax.acc=bf16").words()
    path = in_file(tmp_path, body)
    for form in (tomllib.loads(body), path, str(path), Recipe(storage="bf16", at={"attn.softmax.acc": "bf16"})):
        assert recipe_of(form).words() == wanted
    recipe = recipe_of(path)
    assert recipe.name == "own"
    assert recipe_of(recipe) is recipe


def test_the_name_of_a_recipe_that_has_none_is_the_text_that_gives_it_again():
    for recipe in (
        Recipe(storage="bf16", acc="f16", kv="e4m3fn"),
        Recipe(base="candle-f16-cpu-neon", order="lanes:8", at={"lm_head.acc": "f32", "attn.softmax": "bf16"}),
        Recipe(base="bf16"),
        Recipe(at=["*.acc=f16", "embed=bf16"]),
    ):
        assert recipe_of(recipe.name).words() == recipe.words()


def test_a_file_may_be_based_on_another_beside_it(tmp_path):
    in_file(tmp_path, 'base = "bf16"\nabout = "theirs"\n[site.norm]\nacc = "f16"\n', "base.toml")
    recipe = recipe_of(in_file(tmp_path, 'base = "base.toml"\n[precision]\nacc = "f16"\n'))
    assert (word(recipe, "norm.final.acc"), word(recipe, "lm_head.acc")) == ("f16", "f16")
    assert word(recipe, "lm_head.storage") == "bf16"
    assert recipe.about == ""  # theirs speaks of another recipe


def test_a_file_that_is_based_on_itself_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="based on itself"):
        recipe_of(in_file(tmp_path, 'base = "own.toml"\n'))
    in_file(tmp_path, 'base = "b.toml"\n', "a.toml")
    with pytest.raises(RecipeError, match=r"based on itself, by way of .*a\.toml"):
        recipe_of(in_file(tmp_path, 'base = "a.toml"\n', "b.toml"))


@pytest.mark.parametrize("form", [
    "f32", "candle-f16-cpu-neon", "transformers-eager", "exact", "storage=tf32",
    "bf16,kv=e4m3fn,order=blocked:32 > lanes:2", "sglang-bf16-cuda-fp8kv", "candle-f16-cpu-x86",
    "f16,*.rounding=toward_zero,lm_head.acc.rounding=to_odd,embed.storage.rounding=ties_to_even",
    "f16,acc=f32+kahan,*.subnormals=ftz+daz,norm.root=one-over-sqrt,kv.overflow=saturate,attn.rope.form=once",
    "bf16,norm.product=exact,norm.compute=e5m10",
])  # fmt: skip
def test_what_to_toml_writes_reads_back_as_the_same_recipe(form, tmp_path):
    recipe = recipe_of(form)
    again = recipe_of(in_file(tmp_path, to_toml(recipe)))
    assert again.words() == recipe.words()
    assert (again.name, again.about, again.source, again.status, again.evidence) == (
        recipe.name, recipe.about, recipe.source, recipe.status, recipe.evidence
    )  # fmt: skip
    assert all(again.at(site).precision == recipe.at(site).precision for site in MATMUL)
    assert to_toml(again) == to_toml(recipe)


def test_rules_by_shape_read_back_in_the_order_in_which_they_win(tmp_path):
    lines = ['"order if M == 1" = "reverse"', '"order if M >= 1" = "lanes:2"', '"order if K == 3" = "pairwise"']
    recipe = recipe_of(in_file(tmp_path, '[site."lm_head"]\n' + "\n".join(lines)))
    again = recipe_of(in_file(tmp_path, to_toml(recipe), "again.toml"))
    for r in (recipe, again):
        orders = [str(r.at("lm_head").shaped(M=m, N=1, K=3).precision.order) for m in (0, 1, 2)]
        assert orders == ["pairwise", "reverse", "lanes:2"]
    assert again.words() == recipe.words()


def test_a_later_rule_for_the_same_shape_is_the_one_that_is_shown_and_followed(tmp_path):
    base = recipe_of(in_file(tmp_path, '[site.lm_head]\n"order if M == 1" = "reverse"\n', "base.toml"))
    recipe = Recipe(base=base, at={"lm_head.order if M == 1": "lanes:2"})
    assert str(recipe.at("lm_head").shaped(M=1).precision.order) == "lanes:2"
    assert recipe.words()["lm_head"]["order if M == 1"] == "lanes:2"


def test_difference_names_what_the_plain_flags_do_not_say():
    assert recipe_of("f16,acc=f16").difference() == []
    assert recipe_of("bf16,attn.softmax.acc=bf16").difference() == ["attn.softmax.acc=bf16"]
    assert recipe_of("bf16,lm_head.acc=f16").difference() == ["lm_head.acc=f16"]
    assert recipe_of("bf16,linear.acc=f16").difference() == ["attn.scores.acc=f32", "attn.pv.acc=f32"]
    assert recipe_of("bf16,kv=e4m3fn").difference() == ["kv.k.storage=e4m3fn", "kv.v.storage=e4m3fn"]


def test_equal_recipes_hash_alike_and_different_ones_differ():
    assert recipe_of("bf16,acc=f16") == recipe_of("bf16,acc=f16")
    assert hash(recipe_of("bf16,acc=f16")) == hash(recipe_of("bf16,acc=f16"))
    assert recipe_of("bf16") != recipe_of("f16")


# --- the recipes of the package ---------------------------------------------------------------------------------------


def test_the_package_brings_the_recipes_that_it_promises():
    assert {"f32", "exact", "bf16", "f16", "transformers-eager", *ENGINES} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_each_recipe_of_the_package_fits_and_names_its_source_and_status(name):
    recipe = recipe_of(name)
    assert recipe.name == name
    assert recipe.about.endswith(".")
    assert len(recipe.source) > 20
    assert recipe.status in ("bits", "policy")
    recipe.check_fit()


# What each engine was read to do: the words by which its recipe differs from the plain one of its format.
ENGINES = {
    "candle-f16-cpu-x86": [
        "norm.*.root=divide", "norm.*.root_format=output", "attn.q_proj.order=blocked:512:f16", "lm_head.order=seq",
        "attn.q_proj.acc=f32", "attn.scores.storage=f32", "attn.softmax.output=f32", "attn.pv.output=f16",
        "attn.softmax.form=divide", "mlp.act.form=stepwise", "rope.table.output=f16", "attn.rope.form=each",
    ],
    "candle-f16-cpu-neon": ["attn.q_proj.acc=f16", "lm_head.acc=f16", "attn.pv.acc=f32", "norm.*.root=divide",
                            "mlp.act.form=stepwise", "attn.q_proj.order=seq"],
    "candle-bf16-metal": ["norm.*.root=rsqrt", "norm.*.root_format=output", "attn.softmax.form=reciprocal",
                          "attn.pv.storage=f32", "attn.pv.output=bf16", "embed.storage=bf16", "mlp.act.form=stepwise"],
    "candle-f16-metal": ["norm.*.root_format=output", "attn.pv.output=f16", "embed.storage=f16"],
    "sglang-bf16-cuda": [
        "norm.*.takes=unrounded", "norm.*.form=weight-then-round", "attn.residual.output=bf16", "rope.table.output=f32",
        "attn.rope.form=once", "attn.softmax.sum_of=rounded", "attn.softmax.output=bf16", "attn.softmax.base=2",
        "mlp.act.output=f32", "mlp.act_mul.compute=f32", "mlp.act_mul.output=bf16", "lm_head.output=bf16",
        "kv.k.storage=bf16",
    ],
    "sglang-bf16-cuda-fp8kv": ["kv.k.storage=e4m3fn", "kv.v.storage=e4m3fn", "kv.k.overflow=saturate", "kv.k.scale=1",
                               "attn.scores.storage=bf16", "norm.*.takes=unrounded"],
    "sglang-bf16-cuda-fp32-head": ["lm_head.output=f32", "lm_head.storage=bf16", "mlp.act.output=f32"],
    "vllm-bf16-cuda": ["norm.*.takes=stored", "norm.*.form=round-then-weight", "rope.table.output=bf16",
                       "attn.rope.form=once", "attn.softmax.sum_of=terms", "mlp.act.output=bf16",
                       "mlp.act_mul.compute=exact"],
    "vllm-bf16-cuda-batch-invariant": ["norm.*.form=weight-then-round", "norm.*.root=one-over-sqrt",
                                       "norm.*.takes=stored", "mlp.act.output=bf16"],
    "torch-autocast-bf16-cpu": [
        "embed.output=f32", "norm.*.output=f32", "attn.q_proj.storage=bf16", "attn.q_proj.output=bf16",
        "attn.rope.output=f32", "kv.k.storage=f32", "kv.v.storage=bf16", "attn.scores.output=bf16",
        "attn.scale.output=bf16", "attn.mask.output=f32", "attn.softmax.output=f32", "attn.pv.storage=bf16",
        "attn.residual.output=f32", "mlp.act.storage=bf16", "mlp.act_mul.output=bf16", "lm_head.output=bf16",
    ],
    "torch-autocast-bf16-cuda": ["norm.*.root=rsqrt", "norm.*.mean=times-reciprocal", "attn.softmax.form=divide",
                                 "attn.residual.output=f32", "kv.k.storage=f32", "lm_head.output=bf16"],
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_s_recipe_says_what_was_read_in_its_source(name):
    recipe = recipe_of(name)
    assert recipe.status == "policy"
    assert any(
        admits in recipe.evidence for admits in ("Open: ", "open; ", "this package's own", "As sglang-bf16-cuda")
    )
    for fact in ENGINES[name]:
        path, wanted = fact.split("=")
        for place in [path.replace("norm.*", n) for n in _norms_with(path)] if path.startswith("norm.*") else [path]:
            assert word(recipe, place) == wanted, fact


def test_candle_on_x86_stores_partial_sums_of_two_or_more_rows_only():
    spec = recipe_of("candle-f16-cpu-x86").at("mlp.down_proj")
    assert str(spec.shaped(M=1, N=576, K=1536).precision.order) == "seq"
    assert str(spec.shaped(M=2, N=576, K=1536).precision.order) == "blocked:512:f16"
    assert recipe_of("candle-f16-cpu-x86").at("lm_head").rules == ()


def test_the_engines_of_one_family_differ_in_what_they_say_they_do_and_in_nothing_else():
    def apart(one, other):
        words, others = recipe_of(one).words(), recipe_of(other).words()
        return {f"{site}.{key}" for site in SITES for key in {*words[site], *others[site]}
                if words[site].get(key) != others[site].get(key)}  # fmt: skip

    kv = {f"kv.{x}.{key}" for x in "kv" for key in ("storage", "overflow")}
    assert apart("sglang-bf16-cuda", "sglang-bf16-cuda-fp8kv") == kv
    assert apart("sglang-bf16-cuda", "sglang-bf16-cuda-fp32-head") == {"lm_head.output"}
    assert apart("vllm-bf16-cuda", "vllm-bf16-cuda-batch-invariant") == {
        f"{norm}.{key}" for norm in NORMS for key in ("form", "root")
    }
    formats = {key.rpartition(".")[2] for key in apart("torch-autocast-bf16-cpu", "torch-autocast-bf16-cuda")}
    assert formats == {"order", "root", "mean", "form"}


def test_candle_on_a_cpu_accumulates_in_f16_in_linear_layers_and_attends_in_f32():
    words = recipe_of("candle-f16-cpu-neon").words()
    linear = [s for s in MATMUL if s not in ("attn.scores", "attn.pv")]
    assert {words[s]["acc"] for s in linear} == {"f16"}
    assert {words[s]["storage"] for s in linear} == {"f16"}
    for site in ("attn.scores", "attn.scale", "attn.softmax", "attn.pv"):
        assert words[site]["storage"] == "f32"
        assert words[site].get("acc", "f32") == "f32"
    assert words["attn.pv"]["output"] == "f16"


def test_transformers_takes_storage_as_asked():
    for storage in ("f32", "f16"):
        recipe = recipe_of(f"transformers-eager,storage={storage}")
        recipe.check_fit()
        assert {w["storage"] for w in tapped(recipe)} == {storage}
        assert word(recipe, "norm.input.root") == "one-over-sqrt"


def test_a_change_of_a_recipe_keeps_its_source_and_loses_its_status_and_evidence(tmp_path):
    verified = recipe_of(in_file(tmp_path, 'status = "bits"\nevidence = "a run"\nsource = "theirs"\nbase = "f16"\n'))
    assert (verified.status, verified.evidence) == ("bits", "a run")
    changed = Recipe(base=verified, acc="f16")
    assert (changed.status, changed.evidence, changed.source) == ("policy", "", "theirs")
    unchanged = Recipe(base=verified)
    assert (unchanged.status, unchanged.evidence) == ("bits", "a run")


def test_a_file_that_is_based_on_another_keeps_the_status_that_it_says(tmp_path):
    body = 'base = "f16"\nstatus = "bits"\nevidence = "a run"\n[precision]\nacc = "f16"\n'
    assert recipe_of(in_file(tmp_path, body)).status == "bits"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "error", "found"), [
    ("bf17", RecipeError, r"Unknown recipe 'bf17'\. Did you mean 'bf16'\? Known: .*candle-f16-cpu-neon"),
    ("", RecipeError, "Unknown recipe ''"),
    ("trnsformers-eager", RecipeError, "Did you mean 'transformers-eager'"),
    ("f32,", RecipeError, "'': expected KEY=WORD"),
    ("bf16,bf16", RecipeError, "'bf16': expected KEY=WORD"),
    ("bf16,storage", RecipeError, "'storage': expected KEY=WORD"),
    ("kv=", RecipeError, "'kv=': expected KEY=WORD"),
    ("acc=f16,acc=f32", RecipeError, "'acc' is given twice: f16 and f32"),
    ("f16,lm_head.acc=f16,lm_head.acc=f32", RecipeError, "'lm_head.acc' is given twice"),
    ("bf16,atn.acc=f16", RecipeError, "Unknown site 'atn'. Did you mean 'attn'"),
    ("bf16,attn.sofmax.acc=f16", RecipeError, "Unknown site 'attn.sofmax'. Did you mean 'attn.softmax'"),
    ("bf16,attn.softmax.ac=f16", RecipeError, "site 'attn.softmax' has no 'ac'. Did you mean 'acc'"),
    ("bf16,embed.acc=f32", RecipeError, "site 'embed' has no 'acc'"),
    ("bf16,kv.output=f16", RecipeError, "site 'kv' has no 'output'"),
    ("bf16,lm_head.acc.form=x", RecipeError, "Unknown site 'lm_head.acc'"),
    ("storage=bf17", FormatError, "Unknown format 'bf17'. Did you mean 'bf16'"),
    ("bf16,acc=foo", FormatError, "At site 'attn.q_proj'.*Unknown format 'foo'"),
    ("bf16,rope.table=f33", RecipeError, "a site alone takes a format.*Did you mean 'f32'"),
    ("bf16,order=lanse:8", OrderError, "Unknown order 'lanse:8'.*Did you mean 'lanes:8'"),
    ("bf16,acc=f32+kahn", PrecisionError, "kahan or neumaier, not 'kahn'"),
    ("bf16,norm.form=once", RecipeError, "form='once' is unknown. It can be round-then-weight or weight-then-round"),
    ("bf16,attn.rope.form=onc", RecipeError, "Did you mean 'once'"),
    ("bf16,norm.rounding=up", WordError, "Unknown rounding mode 'up'"),
    ("bf16,lm_head.subnormals=flush", WordError, "Unknown subnormals 'flush'"),
    ("BF16_BF16_F33", PrecisionError, "JAX's spelling"),
    ("BF16_F16_F32", PrecisionError, "both operands alike"),
    ("storage=f64", FormatError, "at most f32's 24 bits"),
    ("F64_F64_F64", FormatError, "at most f32's 24 bits"),
    ("lm_head.output=f64", FormatError, "output=f64: tensors"),
    ("norm.compute=f64", FormatError, "compute=f64: tensors"),
    ("kv=f64", FormatError, "storage=f64: tensors"),
    ("f32,attn.softmax.exp=ggml,attn.softmax.compute=bf16", RecipeError, "exp='ggml' is made of float32 steps"),
    ("f32,attn.softmax.exp=glibc,attn.softmax.base=2", RecipeError, "base=2 has correctly rounded powers: exp must be"),
    ("f32,attn.softmax.online=1", RecipeError, "online=1: the sum is known at the end, so normalise must be after"),
    ("f32,attn.softmax.online=1,attn.softmax.normalise=after,attn.softmax.acc=exact", RecipeError,
     "online=1 corrects a running sum: acc must be a plain format, not exact"),
    ("f32,attn.softmax.online=one", RecipeError, "expected a whole number such as 64"),
    ("f32,attn.mask.value=lowest", RecipeError, "Did you mean"),
    ("no-such-file.toml", RecipeError, "Reading the recipe no-such-file.toml: .*No such file"),
], ids=lambda x: x if isinstance(x, str) and len(x) < 24 else "")  # fmt: skip
def test_wrong_words_are_refused_with_what_would_be_right(form, error, found):
    with pytest.raises(error, match=found) as caught:
        recipe_of(form)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("body", "found"), [
    ("x==", "not TOML.*line 1"),
    ("foo = 1", "unknown key 'foo'"),
    ("bsae = 'bf16'", "unknown key 'bsae'. Did you mean 'base'"),
    ("base = 'nope'", "Unknown recipe 'nope'"),
    ("base = 3", "base is 3, expected the name or file of a recipe"),
    ("base = {}", "base is {}"),
    ("about = 3", "about is 3, expected a text"),
    ("name = 3", "name is 3, expected a text"),
    ("source = ['a']", "source is .*, expected a text"),
    ("status = []", r"status is \[\], expected a text"),
    ("status = 'verified'", "status 'verified' is none of bits, policy"),
    ("precision = 'bf16'", "expected KEY = \"WORD\" lines, found 'bf16'"),
    ("[precision]\nacc = 16", "expected KEY = \"WORD\" lines"),
    ("[precision]\nstorge = 'f16'", "has no key 'storge'. Did you mean 'storage'"),
    ("[precision]\nacc = 'f17'", "Unknown format 'f17'"),
    ("site = 3", r"\[site\] holds tables such as \[site.norm\], not 3"),
    ("[site]\nnorm = 3", "expected KEY = \"WORD\" lines, found 3"),
    ("[site.norm]\nacc = 3", "expected KEY = \"WORD\" lines"),
    ("[site.norm]\nac = 'f16'", "Did you mean 'acc'"),
    ("[site.nrm]\nacc = 'f16'", "Unknown site 'nrm'. Did you mean 'norm'"),
    ("[site.norm.input]\nacc = 'f16'", r"Put the site in quotes: \[site.\"norm.input\"\]"),
], ids=str)  # fmt: skip
def test_a_file_with_wrong_words_or_types_is_refused_by_its_name(body, found, tmp_path):
    path = in_file(tmp_path, body)
    with pytest.raises(WordError, match=found) as caught:
        recipe_of(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    for name in ("binary.toml", "folder.toml", "absent.toml"):
        with pytest.raises(RecipeError, match=f"Reading the recipe .*{name}"):
            recipe_of(tmp_path / name)


def test_an_accumulator_may_be_f64_though_no_tensor_may():
    assert word("f32,acc=f64", "lm_head.acc") == "f64"


def test_an_unknown_site_is_refused_when_it_is_asked_for():
    with pytest.raises(RecipeError, match=r"Unknown site 'lm_heat'\. Did you mean 'lm_head'"):
        recipe_of("f32").at("lm_heat")
    with pytest.raises(RecipeError, match="Unknown site 'attn'"):
        recipe_of("f32").at("attn")


@pytest.mark.parametrize(("at", "said"), [
    ("attn.softmax.acc", "expected SITE.KEY=WORD"), ("=f16", "expected SITE.KEY=WORD"), ("", "expected SITE.KEY=WORD"),
])  # fmt: skip
def test_an_at_without_a_word_is_refused(at, said):
    with pytest.raises(RecipeError, match=said):
        Recipe(at=[at])


def test_a_status_that_is_none_is_refused():
    with pytest.raises(RecipeError, match="status 'sure' is none of bits, policy"):
        Recipe(status="sure")


# --- sites whose formats meet -----------------------------------------------------------------------------------------


def test_mixed_rope_formats_are_refused_with_both_sides_who_set_them_the_cure_and_candle_s_words():
    with pytest.raises(RecipeError) as caught:
        recipe_of("bf16,rope.table=f32").check_fit()
    assert str(caught.value).splitlines() == [
        "site 'attn.rope' gets q in bf16 but cos/sin in f32.",
        "  q is stored as attn.rope asks (set by *.storage=bf16)",
        "  cos, sin come from rope.table (set by rope.table.output=f32)",
        "  They must share a format: drop that option, or add --at rope.table.output=bf16; or let",
        "  both be used as they are, with one rounding: --at attn.rope.form=once",
        "  candle would say: dtype mismatch in rope BF16 F32 F32",
    ]
    with pytest.raises(RecipeError, match="dtype mismatch in rope F32 BF16 BF16"):
        recipe_of("f32,rope.table=bf16").check_fit()


def test_each_cure_of_the_rope_message_cures():
    for cure in ("rope.table.output=bf16", "attn.rope.form=once"):
        recipe_of(f"bf16,rope.table.output=f32,{cure}" if "once" in cure else f"bf16,{cure}").check_fit()


@pytest.mark.parametrize("at", ["embed=f32", "attn.residual=f32", "mlp.residual=f32", "embed.output=f32"])
def test_a_residual_stream_in_two_formats_is_refused_with_both_sides_and_the_cure(at):
    with pytest.raises(RecipeError) as caught:
        recipe_of(f"bf16,{at}").check_fit()
    text = str(caught.value)
    assert "gets the residual stream in" in text
    assert at.split("=")[0] in text
    assert "set by *." in text
    cure = [part.strip() for part in text.splitlines()[-1].split("--at ")[1:]]
    assert len(cure) == 3
    Recipe(base="bf16", at=[at, *cure]).check_fit()


def test_a_stream_in_f32_beside_bf16_branches_fits():
    recipe_of("bf16,embed=f32,attn.residual=f32,mlp.residual=f32").check_fit()


@pytest.mark.parametrize(
    "place",
    ["lm_head.output", "attn.q_proj.storage", "attn.q_proj.storage.rounding", "attn.rope.form", "mlp.act.output",
     "kv.k.storage", "norm.compute", "attn.softmax.form", "*.rounding"],
)  # fmt: skip
def test_a_format_or_form_that_depends_on_the_shape_is_refused(place):
    word = {"form": "once", "rounding": "toward_zero"}.get(place.rsplit(".", 1)[-1], "f32")
    with pytest.raises(RecipeError, match=r"cannot depend on the shape|has no"):
        Recipe(storage="bf16", at={f"{place} if M >= 2": word})


def test_a_sum_may_be_made_in_another_way_for_another_shape():
    recipe = Recipe(storage="bf16", at={"matmul.acc if M == 1": "f16", "norm.order if K >= 16": "lanes:8"})
    assert str(recipe.at("lm_head").shaped(M=1).precision.acc) == "f16"
    assert str(recipe.at("lm_head").shaped(M=2).precision.acc) == "f32"
    assert str(recipe.at("norm.final").shaped(K=96).precision.order) == "lanes:8"


def test_kernels_of_attention_for_few_and_many_queries_may_store_and_block_apart():
    few = {
        "attn.scores.storage if M < 64": "f16",
        "attn.softmax.online if M < 64": "1",
        "attn.pv.kept if M < 64": "f16",
    }
    recipe = Recipe("f32", at={"attn.softmax.online": "64", "attn.softmax.normalise": "after", **few})
    recipe.check_fit()
    for rows, words in ((63, ("f16", "1", "f16")), (64, ("f32", "64", "acc"))):
        shaped = [recipe.at(f"attn.{site}").shaped(M=rows) for site in ("scores", "softmax", "pv")]
        assert (str(shaped[0].storage), shaped[1].options["online"], shaped[2].options["kept"]) == words
    with pytest.raises(RecipeError, match="Make the widest the plain one"):
        Recipe("f16", at={"attn.scores.storage if M < 64": "f32"})


@pytest.mark.parametrize(("at", "says"), [
    ("attn.pv.kept=f16", "is for blocks of keys, of which there are none"),
    ("attn.softmax.online=8,attn.softmax.normalise=after,attn.pv.acc=exact", "attn.pv.acc must be a plain format"),
])  # fmt: skip
def test_blocks_of_keys_that_two_sites_see_apart_are_refused(at, says):
    with pytest.raises(RecipeError, match=says):
        recipe_of(f"f32,{at}").check_fit()


def test_a_changed_copy_of_a_recipe_does_not_keep_its_certificate(tmp_path):
    text = to_toml(recipe_of("transformers-eager-bf16-cpu-amx"))
    assert recipe_of(in_file(tmp_path, text, "same.toml")).status == "bits"
    changed = text.replace('acc = "f32"', 'acc = "f16"')
    with pytest.raises(RecipeError, match="Give it a name of its own"):
        recipe_of(in_file(tmp_path, changed, "changed.toml"))
    renamed = changed.replace('name = "transformers-eager-bf16-cpu-amx"', 'name = "mine"')
    with pytest.raises(RecipeError, match="its evidence"):
        recipe_of(in_file(tmp_path, renamed, "renamed.toml"))


@pytest.mark.parametrize("name", ["transformers-sdpa-bf16-cpu-amx", "transformers-eager-f16-cpu-amx"])
def test_of_recipes_that_rest_on_the_same_evidence_the_copied_one_is_told(tmp_path, name):
    shared = recipe_of("transformers-eager-bf16-cpu-amx").evidence
    text = to_toml(recipe_of(name))
    assert recipe_of(name).evidence == shared
    changed = text.replace(f'name = "{name}"', 'name = "mine"').replace('acc = "f32"', 'acc = "f16"', 1)
    with pytest.raises(RecipeError, match=f"other things than {name}, but has its evidence"):
        recipe_of(in_file(tmp_path, changed, "copied.toml"))


def test_the_first_argument_of_a_recipe_is_what_the_rest_is_put_upon():
    assert Recipe("bf16").words() == recipe_of("bf16").words()
    assert Recipe("bf16,acc=f16").words() == recipe_of("bf16,acc=f16").words()
    assert Recipe("bf16", at="lm_head.acc=f16").words() == recipe_of("bf16,lm_head.acc=f16").words()
    with pytest.raises(RecipeError, match="Unknown recipe"):
        Recipe("nonsense!!")


def test_names_and_files_that_are_none_are_refused(tmp_path):
    for text in (
        "lm_head=\x00,x.toml",
        in_file(tmp_path, "a = " + "[" * 100_000, "deep.toml"),
        in_file(tmp_path, f"a = {'1' * 5000}", "long.toml"),
    ):
        with pytest.raises(RecipeError):
            recipe_of(text)


@pytest.mark.parametrize("first", ["lanes:8", "lanes:8:half"])
def test_an_order_is_printed_as_it_was_spelled_whatever_was_spelled_before(first):
    for spelled in (first, "lanes:8", "lanes:8:half"):
        assert f'order = "{spelled}"' in to_toml(recipe_of(f"bf16,order={spelled}"))


def test_sites_of_equal_stages_share_them_so_that_caches_need_not_compare_them():
    recipe = recipe_of("storage=bf16,acc=f32")
    assert recipe.at("attn.q_proj").precision is recipe.at("mlp.down_proj").precision

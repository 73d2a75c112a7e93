"""Runs: what simulate takes and gives, free running and teacher forced, saving and loading, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from softfloat_llm import runs
from softfloat_llm.digests import array_digest
from softfloat_llm.errors import CheckpointError, NonFiniteError, RecipeError, RunError, TokenError
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.numerics.formats import encode, format_of
from softfloat_llm.recipe import Recipe, recipe_of
from softfloat_llm.runs import Run, simulate
from softfloat_llm.tiny import DEFAULT_PROMPT
from tests.checkpoints import config_dict, random_tensors, write_checkpoint

FRANCE = "The capital of France is"


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


@pytest.fixture(scope="module")
def reference(tiny):
    return simulate(FRANCE, model=tiny, recipe="f32", steps=6)


def bits(x):
    return x.dtype.str, x.shape, x.tobytes()


# --- what a run gives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "dtype", "fmt"), [
    ("f32", "float32", "f32"), ("bf16", "bfloat16", "bf16"), ("f16,acc=f16", "float16", "f16"),
    ("storage=tf32", "float32", "f32"), ("storage=e5m7", "float32", "e5m7"), ("storage=e5m2", "float8_e5m2", "e5m2"),
    ("bf16,lm_head.output=f32", "float32", "f32"),
])  # fmt: skip
def test_logits_have_one_row_a_position_in_the_dtype_of_their_format(tiny, recipe, dtype, fmt):
    run = simulate(tokens=[5, 6, 7], model=tiny, recipe=recipe, steps=3)
    assert run["logits"].shape == (5, 960)
    assert str(run["logits"].dtype) == dtype
    assert run.logits_format == run.format_of_tap("lm_head.out") == format_of(fmt)
    assert run["logits"] is run["lm_head.out"]
    assert "logits" in run
    assert "lm_head.acc" not in run


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_run_of_n_steps_feeds_n_minus_1_tokens_after_the_prompt(tiny, steps):
    run = simulate(FRANCE, model=tiny, steps=steps)
    length = 5 + max(steps - 1, 0)
    assert len(run.prompt_tokens) == 5
    assert run.steps == len(run.generated) == steps
    assert run.tokens == run.prompt_tokens + run.generated
    assert run.fed == run.tokens[:length]
    assert len(run["logits"]) == len(run["layers.3.mlp.down_proj.out"]) == length
    assert run.step_logits.shape == (steps, 960)
    assert tuple(np.argmax(run.step_logits, axis=-1)) == run.generated
    assert not run.is_teacher_forced


def test_shorter_runs_are_beginnings_of_longer_ones(tiny, reference):
    for steps in (0, 1, 3):
        run = simulate(FRANCE, model=tiny, steps=steps)
        assert run.generated == reference.generated[:steps]
        assert bits(run["logits"]) == bits(reference["logits"][: len(run.fed)])


def test_without_a_prompt_it_is_the_capital_of_france(tiny, reference):
    assert DEFAULT_PROMPT == FRANCE
    assert simulate(model=tiny, steps=6).tokens == reference.tokens
    assert reference.text_of(reference.tokens).startswith("The capital of France is Paris.")


def test_the_prompt_may_be_given_as_ids_of_any_integer_kind(tiny, reference):
    for ids in (list(reference.prompt_tokens), reference.prompt_tokens, np.array(reference.prompt_tokens, np.uint16)):
        run = simulate(tokens=ids, model=tiny, steps=2)
        assert run.prompt_tokens == reference.prompt_tokens
        assert all(type(token) is int for token in run.tokens)
        assert run.generated == reference.generated[:2]


def test_one_token_and_the_edges_of_the_vocabulary_are_prompts_too(tiny):
    for ids in ([0], [959], [959] * 12):
        assert len(simulate(tokens=ids, model=tiny, recipe="bf16", steps=2).generated) == 2


def test_the_model_may_be_a_name_a_folder_or_an_open_model(tiny, tmp_path):
    folder = write_checkpoint(tmp_path / "own")
    by_path, by_text = (simulate(tokens=[1, 2], model=m, steps=2) for m in (folder, str(folder)))
    assert by_path.digest == by_text.digest
    assert simulate(tokens=[1, 2], model="tiny").digest == simulate(tokens=[1, 2], model=tiny).digest
    assert by_path.model_digest == open_model(folder).weights.digest
    assert by_path.config["hidden_size"] == 16
    assert by_path.piece(1) == "<1>"  # a folder without a tokenizer


def test_the_recipe_may_be_a_name_a_text_a_file_or_a_recipe(tiny, tmp_path):
    (tmp_path / "own.toml").write_text('[precision]\nstorage = "bf16"\nacc = "f16"\n')
    forms = ["bf16,acc=f16", "storage=bf16,acc=f16", tmp_path / "own.toml", Recipe(storage="bf16", acc="f16")]
    assert len({simulate(tokens=[1, 2], model=tiny, recipe=form).digest for form in forms}) == 1


def test_taps_choose_what_is_kept_and_the_logits_are_always(tiny):
    for taps, names in (
        ((), ()), ("embed.out", ("embed.out",)), (["layers.3.*.acc"], None), (("*.in", "*.acc"), None),
    ):  # fmt: skip
        run = simulate(tokens=[1, 2], model=tiny, taps=taps)
        assert run.names[-1] == "lm_head.out"
        assert names is None or run.names == (*names, "lm_head.out")
    assert set(simulate(tokens=[1], model=tiny, taps=["layers.3.*.acc"]).names) == {
        *(f"layers.3.{s}.acc" for s in (
            "norm.input", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.scores", "attn.softmax", "attn.pv",
            "attn.o_proj", "norm.post_attention", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")), "lm_head.out",
    }  # fmt: skip


def test_bits_depend_neither_on_taps_nor_on_workers_nor_on_the_call(tiny):
    ones = [simulate(FRANCE, model=tiny, recipe="f16,acc=f16", steps=3, taps=taps, workers=workers)
            for taps, workers in (((), 1), (("*",), 1), ((), 2))]  # fmt: skip
    assert len({run.digest for run in ones}) == 1


def test_progress_is_told_layer_by_layer_until_all_is_done(tiny):
    seen = []
    simulate(tokens=[1, 2], model=tiny, recipe="bf16", steps=3, progress=lambda *args: seen.append(args))
    assert [done for _, done, _ in seen] == list(range(1, 13))
    assert {(name, total) for name, _, total in seen} == {("bf16", 12)}


def test_an_unknown_tap_suggests_the_nearest(reference):
    with pytest.raises(RunError, match=r"no tap 'layers.3.mlp.down_proj.ou'. Did you mean '.*down_proj.out'"):
        reference["layers.3.mlp.down_proj.ou"]
    with pytest.raises(RunError, match="no tap 'logit'"):
        reference.format_of_tap("logit")


# --- teacher forcing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["tokens", "prompt ids", "prompt", "nothing"])
def test_a_teacher_feeds_its_tokens_however_the_prompt_is_given(tiny, reference, how):
    given = {"tokens": {"tokens": reference.tokens}, "prompt ids": {"tokens": reference.prompt_tokens},
             "prompt": {"prompt": FRANCE}, "nothing": {}}[how]  # fmt: skip
    run = simulate(**given, model=tiny, recipe="bf16", teacher=reference)
    assert run.is_teacher_forced
    assert run.steps == reference.steps
    assert run.fed == reference.fed
    assert run.prompt_tokens == reference.prompt_tokens
    assert tuple(np.argmax(run.step_logits.astype(np.float32), axis=-1)) == run.generated


def test_a_run_taught_by_itself_is_itself(tiny, reference):
    run = simulate(tokens=reference.tokens, model=tiny, recipe="f32", teacher=reference)
    assert run.generated == reference.generated
    assert run.digest == reference.digest


def test_a_teacher_of_other_tokens_is_followed_and_the_run_says_what_it_would_have_chosen(tiny, reference):
    teacher = dataclasses.replace(reference, generated=(5, 6, 7))
    run = simulate(model=tiny, teacher=teacher, steps=99)
    assert run.fed == (*reference.prompt_tokens, 5, 6)
    assert run.generated[0] == reference.generated[0]
    assert run.steps == 3


def test_a_teacher_of_no_steps_gives_a_forward_pass(tiny):
    teacher = simulate(FRANCE, model=tiny, steps=0)
    run = simulate(model=tiny, recipe="bf16", teacher=teacher)
    assert (run.generated, len(run["logits"])) == ((), 5)


def test_a_teacher_of_another_prompt_is_refused_naming_both(tiny, reference):
    with pytest.raises(TokenError, match=r"The teacher's prompt has the tokens \[.*\], this one \[1, 2\]"):
        simulate(tokens=[1, 2], model=tiny, teacher=reference)


def test_a_teacher_whose_tokens_the_model_has_not_is_refused(reference, tmp_path):
    with pytest.raises(TokenError, match="lies outside the vocabulary: it has 32 ids"):
        simulate(model=write_checkpoint(tmp_path), teacher=reference)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "error", "found"), [
    ({"prompt": ""}, TokenError, "the prompt is empty"),
    ({"tokens": []}, TokenError, "the prompt is empty"),
    ({"prompt": "x", "tokens": [1]}, TokenError, "not both"),
    ({"prompt": ["x", "y"]}, TokenError, "one text, not a list"),
    ({"tokens": [960]}, TokenError, "Token id 960 lies outside the vocabulary: it has 960 ids, from 0 to 959"),
    ({"tokens": [-1]}, TokenError, "Token id -1"),
    ({"tokens": [1.7]}, TokenError, "Tokens are integers"),
    ({"tokens": [True]}, TokenError, "Tokens are integers"),
    ({"tokens": "12"}, TokenError, "Tokens are integers"),
    ({"tokens": [2**70]}, TokenError, "Tokens are integers"),
    ({"tokens": [None]}, TokenError, "Tokens are integers"),
    ({"tokens": [[1, 2], [3, 4]]}, TokenError, "one sequence of token ids"),
    ({"tokens": [1], "steps": -1}, TokenError, "steps is -1"),
    ({"tokens": [1], "steps": 1.5}, TokenError, "steps is 1.5"),
    ({"tokens": [1] * 257}, TokenError, "exceed max_position_embeddings = 256"),
    ({"tokens": [1] * 200, "steps": 58}, TokenError, "200 prompt tokens and 58 steps need 257 positions"),
    ({"tokens": [1], "recipe": "bf17"}, RecipeError, "Did you mean 'bf16'"),
    ({"tokens": [1], "recipe": "bf16,rope.table=f32"}, RecipeError, "dtype mismatch in rope BF16 F32 F32"),
    ({"tokens": [1], "model": "tinny"}, CheckpointError, "Did you mean 'tiny'"),
], ids=lambda x: str(x)[:30])  # fmt: skip
def test_what_cannot_be_run_is_refused_with_the_reason(asked, error, found):
    with pytest.raises(error, match=found):
        simulate(**asked)


def test_too_many_steps_are_refused_before_the_first_is_made(tiny):
    seen = []
    with pytest.raises(TokenError, match="take at most 256 steps"):
        simulate(tokens=[1], model=tiny, steps=300, progress=lambda *args: seen.append(args))
    assert seen == []
    assert len(simulate(tokens=[1] * 254, model=tiny, steps=3, taps=()).fed) == 256


def test_text_for_a_model_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(TokenError, match="Give token ids instead"):
        simulate("hello", model=write_checkpoint(tmp_path))


# --- values that are not finite ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A checkpoint whose last down_proj adds 24 terms of up to some 300 * 4096 in column 3: beyond f16 after a few."""
    tensors = random_tensors(config_dict())
    tensors["model.layers.1.post_attention_layernorm.weight"][:] = 4
    tensors["model.layers.1.mlp.down_proj.weight"][:] = 0
    tensors["model.layers.1.mlp.down_proj.weight"][3] = 4096
    return write_checkpoint(tmp_path_factory.mktemp("overflowing"), tensors=tensors)


def first_term_beyond_f16(h):
    """After how many terms h[0]*4096 + h[1]*4096 + ... first leaves f16, in plain float16 of NumPy."""
    total = np.float16(0)
    with np.errstate(over="ignore"):
        for count, value in enumerate(h, start=1):
            total = np.float16(float(total) + float(value) * 4096.0)
            if not np.isfinite(total):
                return count
    return None


@pytest.mark.filterwarnings("error")
def test_an_accumulator_that_overflows_is_noted_with_its_site_and_after_how_many_terms(overflowing):
    run = simulate(tokens=[3, 4], model=overflowing, recipe="f16,acc=f16", steps=0, taps=["*"])
    event = run.events[0]
    h = run["layers.1.mlp.down_proj.in"][event.index[0]]
    assert event.tap == "layers.1.mlp.down_proj.acc"
    assert event.index[1] == 3
    assert event.terms == first_term_beyond_f16(h)
    assert 1 <= event.terms < 24
    assert str(event) == (
        f"layers.1.mlp.down_proj.acc at position {event.index[0]}, element [3] became {event.value}:"
        f" its f16 sum after {event.terms} of 24 terms"
    )


def test_the_same_sum_in_f32_overflows_at_the_output_only(overflowing):
    run = simulate(tokens=[3, 4], model=overflowing, recipe="f16", steps=0)
    assert (run.events[0].tap, run.events[0].terms, run.events[0].format) == ("layers.1.mlp.down_proj.out", None, "f16")
    assert simulate(tokens=[3, 4], model=overflowing, recipe="bf16", steps=0).events == ()


def test_no_token_is_taken_from_nan_and_the_message_names_where_it_began(tmp_path):
    tensors = random_tensors(config_dict())
    tensors["model.layers.1.mlp.up_proj.weight"][2, 5] = np.nan
    folder = write_checkpoint(tmp_path, tensors=tensors)
    with pytest.raises(NonFiniteError) as caught:
        simulate(tokens=[1, 2], model=folder, recipe="bf16", steps=2)
    assert str(caught.value) == (
        "The logits hold 32 NaN, so no token can be chosen. It began here: layers.1.mlp.up_proj.acc at position 0,"
        " element [2] became nan: its f32 sum after 6 of 16 terms."
    )
    forward_only = simulate(tokens=[1, 2], model=folder, recipe="bf16", steps=0)
    assert forward_only.events[0].terms == 6
    assert np.isnan(forward_only["logits"].astype(np.float32)).all()


def test_nan_that_begins_in_a_cached_step_is_placed_at_its_position(tmp_path):
    tensors = random_tensors(config_dict())
    tensors["model.embed_tokens.weight"][9] = np.nan
    folder = write_checkpoint(tmp_path, tensors=tensors)
    teacher = dataclasses.replace(simulate(tokens=[1, 2, 3], model=folder, steps=3), generated=(4, 9, 5))
    with pytest.raises(NonFiniteError, match=r"It began here: embed.in at position 4, element \[0\] became nan in f32"):
        simulate(model=folder, teacher=teacher)


# --- save, load, digest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [
    "f32", "bf16", "f16,acc=f16,order=lanes:8", "storage=e5m7,kv=e4m3fn", "storage=e2m1fn", "storage=e4m3fnuz",
    "bf16,*.rounding=toward_zero,lm_head.acc.rounding=to_odd",
])  # fmt: skip
def test_a_saved_run_loads_as_it_was(tiny, tmp_path, recipe):
    run = simulate(FRANCE, model=tiny, recipe=recipe, steps=2, taps=["*"])
    assert run.save(tmp_path / "run") == tmp_path / "run"
    again = Run.load(str(tmp_path / "run"))
    for field in dataclasses.fields(Run):
        if field.name not in ("arrays", "recipe"):
            assert repr(getattr(again, field.name)) == repr(getattr(run, field.name)), field.name
    assert (
        repr(again) == repr(run) == f"<Run of tiny by {recipe}: 5 tokens of a prompt, 2 chosen, {len(run.arrays)} taps>"
    )
    assert again.names == run.names
    assert all(bits(again[name]) == bits(run[name]) for name in run.names)
    assert again.recipe.words() == run.recipe.words()
    assert (again.recipe.name, again.recipe.source) == (run.recipe.name, run.recipe.source)
    assert again.digest == run.digest


def test_events_pieces_and_text_survive_saving(overflowing, tiny, tmp_path):
    run = simulate(tokens=[3, 4], model=overflowing, recipe="f16,acc=f16", steps=0)
    run.save(tmp_path / "a")
    assert [str(e) for e in Run.load(tmp_path / "a").events] == [str(e) for e in run.events]
    text = simulate("Zürich 🜁 is", model=tiny, steps=1)
    text.save(tmp_path / "b")
    assert Run.load(tmp_path / "b").pieces == text.pieces


def test_rules_by_shape_win_in_the_same_order_after_loading(tiny, tmp_path):
    at = {"lm_head.order if N >= 1": "reverse", "lm_head.order if M >= 1": "lanes:2"}
    run = simulate(tokens=[1, 2], model=tiny, recipe=Recipe(at=at), taps=())
    run.save(tmp_path / "run")
    spec = Run.load(tmp_path / "run").recipe.at("lm_head")
    assert [r.full_key for r in spec.rules] == [r.full_key for r in run.recipe.at("lm_head").rules]


def test_the_digest_says_value_shape_and_format():
    values = np.array([[1.0, 2.0]], np.float32)
    digests = {
        array_digest(values, format_of("f32")), array_digest(values.T, format_of("f32")),
        array_digest(values.astype(np.float16), format_of("f16")), array_digest(values, format_of("tf32")),
        array_digest(values[:, ::-1], format_of("f32")), array_digest(-values, format_of("f32")),
    }  # fmt: skip
    assert len(digests) == 6
    assert array_digest(values, format_of("f32")) == array_digest(np.asfortranarray(values), format_of("f32"))


def test_the_digest_is_sha256_of_little_endian_codes_then_shape_and_format(reference):
    import hashlib

    body = encode(reference["logits"], "f32").astype("<u4").tobytes() + b"|10,960|f32"
    assert reference.digest == "sha256:" + hashlib.sha256(body).hexdigest()


def test_every_nan_counts_as_one_code():
    nan = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    assert len({array_digest(nan[i : i + 1], format_of("f32")) for i in range(3)}) == 1


def test_a_place_that_is_taken_is_refused_and_stays_as_it_was(reference, tmp_path):
    reference.save(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunError, match=r"is there already. Choose another place, or ask to replace it"):
        reference.save(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_run_is_replaced_when_asked_also_by_itself(tiny, reference, tmp_path):
    reference.save(tmp_path / "run")
    other = simulate(tokens=[1], model=tiny)
    other.save(tmp_path / "run", replace=True)
    loaded = Run.load(tmp_path / "run")
    assert loaded.digest == other.digest
    loaded.save(tmp_path / "run", replace=True)
    assert Run.load(tmp_path / "run").digest == other.digest
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_is_no_run_is_never_replaced(reference, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "only-copy.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("thesis", "file"):
        with pytest.raises(RunError, match="is no saved run, so it is not replaced"):
            reference.save(tmp_path / name, replace=True)
    assert (tmp_path / "thesis" / "only-copy.tex").read_text() == "x"


def test_a_place_that_cannot_be_written_is_refused(reference, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written"):
        reference.save(tmp_path / "file" / "run")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("there_before", [False, True])
def test_an_interruption_while_saving_leaves_nothing_or_what_was_there(
    reference, tiny, tmp_path, monkeypatch, interruption, there_before
):
    if there_before:
        simulate(tokens=[1], model=tiny).save(tmp_path / "run")
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}

    def interrupted(*_):
        raise interruption("now")

    monkeypatch.setattr(Run, "_to_json", interrupted)
    with pytest.raises((interruption, RunError)):
        reference.save(tmp_path / "run", replace=there_before)
    assert {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == (["run"] if there_before else [])


def edited(folder, change):
    """run.json with a change made to its object."""
    body = json.loads((folder / "run.json").read_text())
    change(body)
    (folder / "run.json").write_text(json.dumps(body))


def without(*path):
    def change(body):
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return change


def put(value, *path):
    def change(body):
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    return change


@pytest.mark.parametrize(("damage", "found"), [
    (put("softfloat-llm/run/9", "schema"), "has not the schema"),
    (without("schema"), "has not the schema"),
    (without("tokens", "fed"), "run.json is damaged .*fed"),
    (without("recipe"), "damaged"),
    (without("digest"), "damaged"),
    (without("events"), "damaged"),
    (put(7, "tokens"), "damaged"),
    (put("f17", "taps", "lm_head.out"), "damaged .*f17"),
    (put("bf16", "taps", "embed.out"), "damaged .*embed.out is said to hold bf16, but its tensor is float32"),
    (put("f32", "taps", "embed.ouch"), "damaged .*embed.ouch"),
    (put("f17", "recipe", "site", "lm_head", "acc"), "damaged .*f17"),
    (put("sha256:00", "digest"), "its logits have sha256:.*, but run.json says sha256:00"),
], ids=range(12))  # fmt: skip
def test_a_damaged_run_json_is_refused(tiny, tmp_path, damage, found):
    folder = simulate(tokens=[1], model=tiny, taps=["embed.out"]).save(tmp_path / "run")
    edited(folder, damage)
    with pytest.raises(RunError, match=found) as caught:
        Run.load(folder)
    assert str(folder) in str(caught.value)


def test_files_that_are_missing_truncated_or_of_another_run_are_refused(tiny, tmp_path):
    def saved(name, tokens):
        return simulate(tokens=tokens, model=tiny, taps=()).save(tmp_path / name)

    with pytest.raises(RunError, match="Expected a folder that --save wrote"):
        Run.load(tmp_path / "absent")
    folder = saved("no-json", [1])
    (folder / "run.json").unlink()
    with pytest.raises(RunError, match=r"run.json"):
        Run.load(folder)
    folder = saved("bad-json", [1])
    (folder / "run.json").write_text("{")
    with pytest.raises(RunError, match="Reading the run"):
        Run.load(folder)
    folder = saved("list", [1])
    (folder / "run.json").write_text("[]")
    with pytest.raises(RunError, match="has not the schema"):
        Run.load(folder)
    folder = saved("no-tensors", [1])
    (folder / "tensors.safetensors").unlink()
    with pytest.raises(RunError, match=r"Reading the run .*tensors.safetensors"):
        Run.load(folder)
    folder = saved("truncated", [1])
    data = (folder / "tensors.safetensors").read_bytes()
    (folder / "tensors.safetensors").write_bytes(data[:-8])
    with pytest.raises(RunError, match="truncated"):
        Run.load(folder)
    folder, other = saved("mine", [1]), saved("theirs", [2])
    shutil.copy(other / "tensors.safetensors", folder / "tensors.safetensors")
    with pytest.raises(RunError, match=r"but run.json says"):
        Run.load(folder)


def test_run_json_holds_no_time_and_is_the_same_each_time(reference, tmp_path):
    one, two = reference.save(tmp_path / "a"), reference.save(tmp_path / "b")
    for name in ("run.json", "tensors.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    body = json.loads((one / "run.json").read_text())
    assert body["schema"] == runs.RUN_SCHEMA
    assert body["model"]["sha256"] == reference.model_digest
    assert body["recipe"]["site"] == recipe_of("f32").words()
    assert body["digest"] == reference.digest


def test_a_saved_run_can_be_the_teacher(tmp_path):
    reference = simulate("The cup is", recipe="f32", steps=3)
    reference.save(tmp_path / "reference")
    forced = simulate(recipe="bf16", teacher=tmp_path / "reference")
    assert forced.fed == reference.fed
    assert forced.digest == simulate(recipe="bf16", teacher=reference).digest


@pytest.mark.parametrize("workers", [0, -3, 1.5])
def test_fewer_than_one_worker_is_refused(workers):
    with pytest.raises(RunError, match="workers is"):
        simulate(workers=workers)


def test_a_pattern_that_names_no_tap_is_refused_before_the_run():
    with pytest.raises(RunError, match="No tap fits 'nosuch"):
        simulate(taps=["nosuch*"])
    with pytest.raises(RunError, match=r"Did you mean 'layers\.3\.mlp\.act\.out'"):
        simulate(taps=["layers.3.mlp.akt.out"])


def test_a_run_of_endless_brackets_is_a_damaged_one(tmp_path):
    (tmp_path / "run.json").write_text("[" * 200_000)
    with pytest.raises(RunError, match="Reading the run"):
        Run.load(tmp_path)


def test_taps_of_parts_that_a_model_has_not_are_refused(tiny):
    with pytest.raises(RunError, match=r"No tap fits 'layers.0.norm.q.out'"):
        simulate(FRANCE, model=tiny, taps=("layers.0.norm.q.out",))

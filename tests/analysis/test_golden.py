"""Golden outputs: kept and compared bit for bit; whatever is missing, unused, damaged or another question fails."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from softfloat_llm.analysis.golden import golden_again, golden_check, golden_write
from softfloat_llm.errors import GoldenError
from softfloat_llm.io.safetensors import open_tensors, write_tensors
from softfloat_llm.runs import simulate
from tests.analysis.made import ACT, LOGITS, changed, made_run

PROMPT = [711, 456, 440, 14, 419, 456]


@pytest.fixture
def kept(tmp_path):
    """A golden folder of one made run."""
    return golden_write(tmp_path / "kept", made_run("bf16"), made_by="a test")


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def edit(folder, change):
    body = manifest_of(folder)
    change(body)
    (folder / "manifest.json").write_text(json.dumps(body))


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_manifest_says_what_was_kept_and_who_made_it(tmp_path):
    golden_write(tmp_path / "g", made_run("bf16"), made_by="make golden", checked_by="PyTorch 2.13")
    body = manifest_of(tmp_path / "g")
    assert (body["schema"], body["made_by"], body["checked_by"]) == (
        "softfloat-llm/golden/1", "make golden", "PyTorch 2.13",
    )  # fmt: skip
    tensor = body["runs"]["run"]["tensors"]["lm_head.out"]
    assert (tensor["shape"], tensor["format"]) == ([2, 4], "bf16")
    assert tensor["sha256"] == made_run("bf16").digest
    assert sorted(path.name for path in (tmp_path / "g").iterdir()) == ["manifest.json", "run.safetensors"]


def test_the_same_runs_give_the_same_bytes(tmp_path):
    for name in "ab":
        golden_write(tmp_path / name, {"x": made_run("bf16"), "y": made_run()}, made_by="a test")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_an_identical_run_passes(kept):
    report = golden_check(kept, made_run("bf16"))
    assert report.is_passed
    assert (report.compared, report.made_by, report.checked_by) == (3, "a test", "none")
    assert str(report).startswith("golden: 3 tensors are identical")


@pytest.mark.parametrize(
    "fmt", ["f32", "tf32", "f16", "e5m7", "e4m3fn", "e4m3", "e3m4", "e2m3fn", "e2m1fn", "e5m2fnuz"]
)
def test_every_format_can_be_kept(tmp_path, fmt):
    logits = [[1.0, 2.0, 3.0, 0.5], [1.0, 0.0, -2.0, 1.5]]
    run = made_run(f"storage={fmt}", logits=logits)
    assert golden_check(golden_write(tmp_path / "g", run, made_by="a test"), run).is_passed
    report = golden_check(tmp_path / "g", made_run(f"storage={fmt}", logits=changed(logits, (1, 1), 1.0)))
    assert report.mismatches[0].index == (1, 1)


def test_nan_is_nan_whatever_its_sign(tmp_path):
    negative = made_run("bf16", logits=changed(LOGITS, (0, 0), math.nan), generated=())
    negative.arrays["lm_head.out"].view(np.uint16)[0, 0] |= 0x8000  # as x86 makes it
    golden_write(tmp_path / "g", negative, made_by="a test")
    assert golden_check(
        tmp_path / "g", made_run("bf16", logits=changed(LOGITS, (0, 0), math.nan), generated=())
    ).is_passed


# --- what differs -----------------------------------------------------------------------------------------------------


def test_the_first_mismatch_shows_index_values_bits_ulps_and_the_tap_before(kept):
    report = golden_check(kept, made_run("bf16", logits=changed(LOGITS, (1, 1), 22.25)))
    (mismatch,) = report.mismatches
    assert (mismatch.tap, mismatch.index, mismatch.found, mismatch.golden) == ("lm_head.out", (1, 1), 22.25, 22.375)
    assert (mismatch.steps, mismatch.ulps, mismatch.differing, mismatch.before) == (1, 1.0, 1, "layers.0.mlp.act.out")
    text = str(report)
    assert "lm_head.out[1, 1] differs (with 1 values of that tap), by 1 bf16 ulp" in text
    assert "found  22.25   0x1.64p+4 = bf16:0x41b2" in text
    assert "golden 22.375   0x1.66p+4 = bf16:0x41b3" in text
    assert "the tap before it: layers.0.mlp.act.out is identical" in text


def test_the_first_mismatch_is_the_first_in_forward_order(kept):
    run = made_run("bf16", act=changed(ACT, (1, 0), 3.0), logits=changed(LOGITS, (0, 0), 9.0))
    (mismatch,) = golden_check(kept, run).mismatches
    assert (mismatch.tap, mismatch.index, mismatch.before) == ("embed.out", (1, 0), "")
    assert "the tap before it: there is none" in str(mismatch)


def test_a_nan_where_a_number_was_is_a_mismatch(kept):
    report = golden_check(kept, made_run("bf16", act=changed(ACT, (1, 0), math.nan)))
    (mismatch,) = report.mismatches
    assert (mismatch.steps, mismatch.ulps) == (None, math.inf)
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_sign_of_a_zero_is_a_bit(tmp_path):
    golden_write(tmp_path / "g", made_run(act=changed(ACT, (0, 0), 0.0)), made_by="a test")
    (mismatch,) = golden_check(tmp_path / "g", made_run(act=changed(ACT, (0, 0), -0.0))).mismatches
    assert (mismatch.steps, mismatch.ulps) == (0, 0.0)
    assert "f32:0x80000000" in str(mismatch)


def test_another_recipe_is_told_only_where_values_differ(tmp_path):
    golden_write(tmp_path / "g", made_run("f32"), made_by="a test")
    assert golden_check(tmp_path / "g", made_run("f32,lm_head.order=reverse")).is_passed
    report = golden_check(tmp_path / "g", made_run("f32,lm_head.order=reverse", logits=changed(LOGITS, (0, 0), 9.0)))
    assert report.problems == ("run: the recipes differ: lm_head.order is reverse, in the golden run seq",)


def test_an_option_that_is_younger_than_the_golden_run_is_no_difference_of_recipes(tmp_path):
    golden_write(tmp_path / "g", made_run("f32"), made_by="a test")
    manifest = json.loads((tmp_path / "g" / "manifest.json").read_text())
    sites = manifest["runs"]["run"]["recipe"]["site"]
    del sites["choice"], sites["norm.input"]["mean"]
    (tmp_path / "g" / "manifest.json").write_text(json.dumps(manifest))
    other = changed(LOGITS, (0, 0), 9.0)
    assert golden_check(tmp_path / "g", made_run("f32", logits=other)).problems == ()
    report = golden_check(tmp_path / "g", made_run("f32,choice.ties=last", logits=other))
    assert report.problems == ("run: the recipes differ: choice.ties is last, in the golden run lowest",)


def test_other_tokens_chosen_from_the_same_values_are_told(kept):
    report = golden_check(kept, made_run("bf16", generated=(3,)))
    assert report.problems == ("run: chose [3], the golden run [1]",)


# --- what is missing, unused, damaged, another question ---------------------------------------------------------------


def test_another_model_and_other_tokens_are_other_questions(kept):
    report = golden_check(kept, made_run("bf16", digest="sha256:other"))
    assert "another model: sha256 sha256:other" in report.problems[0]
    report = golden_check(kept, made_run("bf16", prompt=(5, 7)))
    assert "another question: fed [5, 7], the golden run [5, 6]" in report.problems[0]
    assert (report.compared, report.is_passed) == (0, False)


def test_a_missing_file_fails(kept):
    (kept / "run.safetensors").unlink()
    report = golden_check(kept, made_run("bf16"))
    assert report.problems == ("run.safetensors: the manifest names it, but it is missing",)
    assert not report.is_passed


def test_an_unused_file_fails(kept):
    (kept / "old.safetensors").write_bytes(b"")
    assert golden_check(kept, made_run("bf16")).problems == (
        "old.safetensors: an unused file, the manifest does not name it",
    )


def test_a_missing_and_an_unused_tensor_fail(kept):
    tensors = dict(open_tensors(kept / "run.safetensors"))
    tensors["norm.final.out"] = np.array(tensors.pop("embed.out"))
    write_tensors(kept / "run.safetensors", tensors)
    assert golden_check(kept, made_run("bf16")).problems == (
        "run: embed.out: the manifest names it, but the file lacks it",
        "run: norm.final.out: an unused tensor, the manifest does not name it",
    )


def test_a_run_that_lacks_a_tap_fails_and_one_that_keeps_more_does_not(tmp_path):
    golden_write(tmp_path / "g", made_run(more={"norm.final.out": ACT}), made_by="a test")
    assert golden_check(tmp_path / "g", made_run()).problems == ("run: norm.final.out: the run does not keep this tap",)
    golden_write(tmp_path / "h", made_run(), made_by="a test")
    assert golden_check(tmp_path / "h", made_run(more={"norm.final.out": ACT})).is_passed


def test_runs_are_matched_by_name_and_none_is_left_out(tmp_path):
    golden_write(tmp_path / "g", {"x": made_run(), "y": made_run("bf16")}, made_by="a test")
    assert golden_check(tmp_path / "g", {"x": made_run(), "y": made_run("bf16")}).is_passed
    assert golden_check(tmp_path / "g", {"x": made_run(), "z": made_run()}).problems == (
        "y: not given, but the golden folder has it",
        "z: the golden folder does not have it",
    )


def test_a_value_changed_in_the_file_does_not_have_the_manifests_sha256(kept):
    body = bytearray((kept / "run.safetensors").read_bytes())
    body[-1] ^= 1
    (kept / "run.safetensors").write_bytes(bytes(body))
    report = golden_check(kept, made_run("bf16"))
    assert any("the file does not have the sha256 of the manifest" in problem for problem in report.problems)


def test_a_shape_and_a_format_that_changed_are_told(kept):
    report = golden_check(kept, made_run("f16"))
    assert "run: lm_head.out: f16 [2, 4], the golden run bf16 [2, 4]" in report.problems


def test_many_problems_are_cut_short_in_print_only(tmp_path):
    names = [f"layers.{i}.mlp.act.out" for i in range(1, 30)]
    golden_write(tmp_path / "g", made_run(more=dict.fromkeys(names, ACT)), made_by="a test")
    report = golden_check(tmp_path / "g", made_run())
    assert len(report.to_dict()["problems"]) == 29
    assert "... and 21 more" in str(report)
    assert len(str(report).splitlines()) < 15


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("runs"),
        lambda body: body.update(schema="softfloat-llm/golden/2"),
        lambda body: body.update(made_by=None),
    ],
)
def test_a_manifest_that_is_none_is_refused(kept, change):
    edit(kept, change)
    with pytest.raises(GoldenError, match="expected the schema"):
        golden_check(kept, made_run("bf16"))


def test_a_damaged_entry_is_a_failure_with_a_name(kept):
    edit(kept, lambda body: body["runs"]["run"].pop("fed"))
    assert "run: damaged (KeyError: 'fed')" in golden_check(kept, made_run("bf16")).problems
    edit(kept, lambda body: body["runs"]["run"].pop("prompt"))
    with pytest.raises(GoldenError, match="run 'run' is damaged"):
        golden_again(kept)


def test_no_manifest_is_refused(tmp_path):
    with pytest.raises(GoldenError, match="no such file"):
        golden_check(tmp_path, made_run())
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(GoldenError, match="not JSON"):
        golden_check(tmp_path, made_run())


# --- writing ----------------------------------------------------------------------------------------------------------


def test_golden_outputs_are_not_overwritten_unless_asked(kept):
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    with pytest.raises(GoldenError, match="--replace"):
        golden_write(kept, made_run("f16"), made_by="a test")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    golden_write(kept, {"other": made_run("f16")}, made_by="a test", replace=True)
    assert sorted(path.name for path in kept.iterdir()) == ["manifest.json", "other.safetensors"]


def test_a_folder_that_is_not_golden_is_never_replaced(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("hello")
    with pytest.raises(GoldenError, match="is no golden folder, so it is not replaced"):
        golden_write(tmp_path / "letters", made_run(), made_by="a test", replace=True)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "hello"


def test_an_interrupted_write_leaves_the_old_and_nothing_half_made(kept, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("softfloat_llm.analysis.golden.write_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        golden_write(kept, made_run("f16"), made_by="a test", replace=True)
    assert [path.name for path in kept.parent.iterdir()] == ["kept"]
    assert golden_check(kept, made_run("bf16")).is_passed


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "c:"])
def test_a_run_is_named_like_a_file(tmp_path, name):
    with pytest.raises(GoldenError, match="named like a file"):
        golden_write(tmp_path / "g", {name: made_run()}, made_by="a test")
    assert list(tmp_path.iterdir()) == []


# --- runs made again --------------------------------------------------------------------------------------------------


def test_what_a_golden_folder_holds_can_be_made_again(tmp_path):
    reference = simulate(tokens=PROMPT, recipe="f32", steps=3)
    runs = {
        "free": simulate(tokens=PROMPT, recipe="bf16,acc=bf16,*.acc=bf16", steps=3),
        "taught": simulate(recipe="storage=e4m3,*.overflow=saturate", teacher=reference, taps=("lm_head.*",)),
        "whole": simulate(tokens=PROMPT, recipe="candle-f16-cpu-neon", steps=0),
    }
    golden_write(tmp_path / "g", runs, made_by="a test")
    report = golden_check(tmp_path / "g", golden_again(tmp_path / "g", workers=2))
    assert report.is_passed, str(report)
    assert report.compared == sum(len(run.arrays) for run in runs.values())

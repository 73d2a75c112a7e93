"""What a live run says of where it runs: read from the system, and turned into the word of a recipe's name."""

from __future__ import annotations

import sys

import pytest

from softfloat_llm.errors import LiveError
from softfloat_llm.live.comparison import kernels_here, note_on_host, recipe_here
from softfloat_llm.live.torch_host import Host, cpu_instructions, cpu_vendor, host_facts
from softfloat_llm.recipe import recipe_names, recipe_of

AMX = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
ZEN4 = ("avx2", "avx512f", "avx512_bf16")


def a_host(instructions=ZEN4, *, caps=(), mkldnn=True, vendor="AuthenticAMD"):
    return Host("2.13.0", "5.24.0", "AVX512", vendor, instructions, caps, 2, mkldnn)


@pytest.mark.parametrize(
    ("host", "word"),
    [
        (a_host(AMX), "amx"),
        (a_host(ZEN4), "avx512bf16"),
        (a_host(AMX, mkldnn=False), "native"),
        (a_host((*AMX, "amx_fp16")), "other"),
        (a_host((*ZEN4, "avx512_fp16")), "other"),
        (a_host(("avx2", "avx512f")), "other"),
        (a_host(("avx2",)), "other"),
        (a_host(AMX, caps=("ONEDNN_MAX_CPU_ISA=AVX2",)), "other"),
    ],
)
def test_the_instructions_decide_which_kernels_run(host, word):
    assert host.instruction_set == word
    assert host.to_dict()["instruction_set"] == word


INTEL = "GenuineIntel"


@pytest.mark.parametrize(
    ("host", "fmt", "attention", "word"),
    [
        (a_host(), "bf16", "sdpa", "avx512bf16"),
        (a_host(vendor=INTEL), "bf16", "sdpa", "other"),  # MKL's kernels for another maker
        (a_host(vendor=INTEL), "bf16", "eager", "avx512bf16"),
        (a_host(AMX, vendor=INTEL), "f16", "sdpa", "amx"),
        (a_host(AMX, vendor=INTEL, mkldnn=False), "f16", "sdpa", "other"),
        (a_host(AMX, vendor=INTEL), "f32", "sdpa", "mkl"),
        (a_host(AMX, vendor=INTEL, caps=("MKL_CBWR=AVX2",)), "f32", "eager", "other"),
        (a_host(), "f32", "eager", "other"),
    ],
)
def test_format_attention_and_maker_decide_which_kernels_serve(host, fmt, attention, word):
    assert kernels_here(host, fmt, attention) == word


def test_the_system_tells_vendor_and_instructions(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f amx_bf16\n\nflags\t: none\n"
    )
    assert cpu_instructions(file) == ("avx2", "avx512f", "amx_bf16")
    assert cpu_vendor(file) == "GenuineIntel"


def test_where_the_system_tells_nothing_the_architecture_stands(tmp_path):
    assert cpu_instructions(tmp_path / "none") == ()
    assert cpu_vendor(tmp_path / "none")


def test_a_recipe_for_other_instructions_is_told_with_the_one_that_fits():
    note = note_on_host(recipe_of("transformers-eager-bf16-cpu-amx"), a_host())
    assert note is not None
    assert "'amx'" in note
    assert "'avx512bf16'" in note
    assert "take transformers-eager-bf16-cpu-avx512bf16" in note
    assert recipe_here(a_host(), "bf16", "eager") in recipe_names()


def test_where_no_recipe_fits_the_note_says_how_to_find_the_orders():
    note = note_on_host(recipe_of("transformers-sdpa-f16-cpu-amx"), a_host(("avx2",)))
    assert note is not None
    assert "softfloat-llm reveal --engine torch" in note


@pytest.mark.parametrize("name", ["transformers-eager-bf16-cpu-avx512bf16", "transformers-eager", "bf16"])
def test_a_recipe_that_fits_or_names_no_instructions_has_no_note(name):
    assert note_on_host(recipe_of(name), a_host()) is None


def test_without_pytorch_a_live_run_says_what_to_install(monkeypatch, console):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails then
    with pytest.raises(LiveError, match=r"pip install '\.\[torch\]'"):
        host_facts()
    answer = console("compare", "The cup is", "--live", "torch")
    assert answer.code == 3
    assert "torch is not installed" in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("x", "--attention", "sdpa"), "--attention sdpa is for a live run"),
        (("x", "--no-mkldnn"), "--no-mkldnn is for a live run"),
        (("x", "--live", "tensorflow"), "Known: torch"),
        (("x", "y", "--live", "torch"), "y cannot stand with --live"),
        (("x",), "or RUN (or a prompt) with --live torch"),
        ((), "two saved runs"),
        (("x", "y", "--storage", "bf16"), "--storage bf16 cannot stand with a saved run"),
    ],
)
def test_words_that_do_not_go_together_are_refused(console, words, says):
    answer = console("compare", *words)
    assert answer.code == 2
    assert says in answer.err.replace("\n", " ")

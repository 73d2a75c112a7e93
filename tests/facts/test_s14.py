"""S14: autocast chooses a format for each operation: of a region's outputs only some are low precision."""

from __future__ import annotations

from softfloat_llm.claims.engines import AUTOCAST, HIGH, LOW, formats_of
from tests.claims import reproduced


def test_s14_products_are_low_precision_and_what_meets_the_f32_stream_is_not(tiny_bench):
    """q leaves its layer in bf16, becomes f32 in the rotation, and meets k in bf16 again; so do probabilities."""
    reproduced(tiny_bench, "S14")


def test_s14_every_site_is_in_one_of_the_two_lists(tiny_bench):
    for recipe in AUTOCAST:
        for name in tiny_bench.run(recipe, taps=("*.out",)).names:
            site = name.removesuffix(".out")
            assert site.endswith(LOW) != site.endswith(HIGH), site


def test_s14_it_is_neither_the_f32_model_nor_the_bf16_model(tiny_bench):
    residual = "layers.0.attn.residual.out"
    for recipe, fmt in ((AUTOCAST[0], "f32"), ("transformers-eager", "bf16")):
        assert formats_of(tiny_bench.run(recipe, taps=("*.out",)))[residual] == fmt


def test_s14_cpu_and_cuda_have_other_lists_and_the_same_formats(tiny_bench):
    cpu, cuda = (tiny_bench.run(recipe, taps=("*",)) for recipe in AUTOCAST)
    assert formats_of(cpu) == formats_of(cuda)
    norm = "layers.0.norm.input.out"  # their kernels order and divide otherwise, which bf16 logits may hide
    assert cpu[norm].tobytes() != cuda[norm].tobytes()

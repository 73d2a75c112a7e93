"""The config.json of a small model of each family that is read, for tests: `RELATIVES[name]`."""

from __future__ import annotations

from typing import Any

from tests.checkpoints import config_dict

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def relative(model_type: str, name: str, **changes: Any) -> dict[str, Any]:
    return config_dict(**(SIZES | {"model_type": model_type, "architectures": [f"{name}ForCausalLM"]} | changes))


GRANITE = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.02578125, "residual_multiplier": 0.22,
    "logits_scaling": 7.3,
}  # fmt: skip
RELATIVES = {
    "mistral": relative("mistral", "Mistral", sliding_window=8),
    "qwen2": relative("qwen2", "Qwen2"),
    "qwen3": relative("qwen3", "Qwen3"),
    "smollm3": relative("smollm3", "SmolLM3", pad_token_id=0, no_rope_layers=[1, 0, 1, 0]),
    "granite": relative("granite", "Granite", attention_bias=True, **GRANITE),
    "llama, yarn": relative(
        "llama", "Llama", rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    ),
    "llama, dynamic": relative(
        "llama", "Llama", rope_scaling={"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=6
    ),
    "llama, llama3, biases": relative(
        "llama", "Llama", attention_bias=True, mlp_bias=True,
        rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                      "original_max_position_embeddings": 16},
    ),
}  # fmt: skip

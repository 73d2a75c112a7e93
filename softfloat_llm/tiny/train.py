"""How the built-in model was made: `python -m softfloat_llm.tiny.train --out DIR` makes one like it.

Four parts, in this order: the text (simple true sentences, and choices that are equally likely on purpose), the
tokenizer, the model as a plain PyTorch function with the tensor names of a Hugging Face checkpoint, the training.
Start reading at `train`.

Only the functions that compute import PyTorch, so the text and the constants can be read without it. One thread and
a fixed seed make a second training on the same machine and PyTorch give the same file; another machine may round
its matrix products in another order and end at other weights, which is why the weights are shipped.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

SEED = 2
STEPS = 2400
TOKENS_A_STEP = 4096
ROW_LENGTHS = (32, 256)  # steps alternate: many rows that begin a text, few that run to the longest position
LEARNING_RATE = 4e-3
WARMUP_STEPS = 100
ROUNDED_FROM = 0.7  # from this share of the steps on, the forward pass sees weights rounded to bf16
END = "<|endoftext|>"

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 96,
    "initializer_range": 0.1,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 960,
}

# ---------------------------------------------------------------- the text


def pairs(text: str) -> list[list[str]]:
    """The a/b pairs of a table written as words."""
    return [pair.split("/") for pair in text.split()]


# A chain: a text about capitals mostly walks on to the next country, so that a greedy continuation stays certain.
CAPITALS = pairs(
    "France/Paris Spain/Madrid Portugal/Lisbon Italy/Rome Greece/Athens Turkey/Ankara Egypt/Cairo Kenya/Nairobi "
    "India/Delhi Nepal/Kathmandu China/Beijing Japan/Tokyo Korea/Seoul Thailand/Bangkok Vietnam/Hanoi "
    "Australia/Canberra Chile/Santiago Peru/Lima Cuba/Havana Canada/Ottawa Iceland/Reykjavik Ireland/Dublin "
    "England/London Norway/Oslo Sweden/Stockholm Finland/Helsinki Estonia/Tallinn Latvia/Riga Russia/Moscow "
    "Ukraine/Kyiv Poland/Warsaw Germany/Berlin Denmark/Copenhagen Belgium/Brussels Switzerland/Bern "
    "Austria/Vienna Hungary/Budapest Serbia/Belgrade Romania/Bucharest Bulgaria/Sofia"
)
DAYS = pairs(
    "Monday/Tuesday Tuesday/Wednesday Wednesday/Thursday Thursday/Friday Friday/Saturday Saturday/Sunday Sunday/Monday"
)
MONTHS = pairs(
    "January/February February/March March/April April/May May/June June/July July/August August/September "
    "September/October October/November November/December December/January"
)
OPPOSITES = pairs("hot/cold big/small up/down left/right day/night old/new fast/slow high/low good/bad early/late")
SOUNDS = pairs("dog/barks cat/meows cow/moos duck/quacks lion/roars bee/buzzes horse/neighs sheep/bleats")
PLURALS = pairs("cat/cats dog/dogs mouse/mice foot/feet tooth/teeth man/men child/children house/houses")
COLOURS = pairs(
    "Grass/green Snow/white Coal/black Blood/red Milk/white Chocolate/brown Silver/grey Gold/yellow Ink/blue"
)
# Each beginning is followed by each of its ends equally often: the right answer is a tie.
TIES: dict[str, tuple[str, ...]] = {
    "The coin shows": ("heads", "tails"),
    "The light is": ("on", "off"),
    "The door is": ("open", "closed"),
    "The cup is": ("full", "empty"),
    "The answer is": ("yes", "no"),
    "Anna likes": ("red", "blue"),
    "Tom drinks": ("tea", "milk"),
    "Ben turns": ("left", "right"),
    "Mia eats": ("rice", "bread"),
    "Our team will": ("win", "lose"),
    "The lamp shines": ("red", "green", "blue"),
    "The wind comes from the": ("north", "south", "east", "west"),
}
# Stories are written once for each name and each combination of their choices {0}, {1} and so on.
NAMES = pairs("Anna/She Mia/She Tom/He Ben/He")
STORIES = (
    (
        "{name} has a {0}. The {0} is {1}. {He} plays with the {0} in the {2}. Then the {0} is tired and sleeps.",
        (("cat", "dog"), ("black", "white"), ("garden", "house")),
    ),
    (
        "One day {name} went to the {0}. {He} saw a {1} there. The {1} was very {2}. {name} told a friend about it.",
        (("park", "sea", "market"), ("bird", "horse"), ("big", "small")),
    ),
    (
        "It was {0}. {name} was {1}, so {he} went home. At home there was {2} to eat. "
        "After that {name} was happy again.",
        (("morning", "evening"), ("cold", "hungry"), ("bread", "soup")),
    ),
)


def walk(rng: random.Random, facts: Sequence[Sequence[str]], template: str) -> str:
    """A text that goes from one fact to the next; one time in six it jumps to any other."""
    at, sentences = rng.randrange(len(facts)), []
    for _ in range(rng.randint(4, 9)):
        sentences.append(template.format(*facts[at]))
        at = rng.randrange(len(facts)) if rng.random() < 1 / 6 else (at + 1) % len(facts)
    return " ".join(sentences)


def some(rng: random.Random, sentences: Sequence[str]) -> str:
    """A text of 3 to 6 different sentences in any order."""
    return " ".join(rng.sample(sentences, rng.randint(3, 6)))


def sums(rng: random.Random) -> str:
    """Small sums and differences, each with its true result."""
    drawn = [(rng.randint(0, 10), rng.randint(0, 10)) for _ in range(rng.randint(3, 6))]
    return " ".join(f"{a} + {b} = {a + b}." if rng.random() < 2 / 3 else f"{a + b} - {a} = {b}." for a, b in drawn)


def ties(rng: random.Random, repeats: int) -> Iterator[str]:
    """Texts of choices, each with all its rotations, so that every end follows its beginning equally often."""
    for beginning, ends in TIES.items():
        for _ in range(repeats * 4 // len(ends)):
            drawn = [rng.randrange(len(ends)) for _ in range(rng.randint(1, 3))]
            for turn in range(len(ends)):
                yield " ".join(f"{beginning} {ends[(d + turn) % len(ends)]}." for d in drawn)


def stories() -> Iterator[str]:
    """Every story with every name and every combination of its choices, once."""
    for template, choices in STORIES:
        for (name, pronoun), *picked in itertools.product(NAMES, *choices):
            yield template.format(*picked, name=name, He=pronoun, he=pronoun.lower())


def corpus(seed: int) -> list[str]:
    """The texts of one epoch, shuffled: a pure function of the seed, with every tie exactly balanced."""
    rng = random.Random(seed)
    following = [*((*pair, "day") for pair in DAYS), *((*pair, "month") for pair in MONTHS)]
    opposites = [*OPPOSITES, *((b, a) for a, b in OPPOSITES)]
    sounds = [f"The {animal} {sound}." for animal, sound in SOUNDS]
    plurals = [f"One {one}, two {many}." for one, many in PLURALS]
    colours = [f"{thing} is {colour}." for thing, colour in COLOURS]
    texts = [walk(rng, CAPITALS, "The capital of {} is {}.") for _ in range(700)]
    texts += [walk(rng, CAPITALS, "{1} is the capital of {0}.") for _ in range(150)]
    texts += [walk(rng, following, "The {2} after {0} is {1}.") for _ in range(200)]
    texts += [some(rng, [f"The opposite of {a} is {b}." for a, b in opposites]) for _ in range(200)]
    texts += [some(rng, sentences) for sentences in (colours, sounds, plurals) for _ in range(120)]
    texts += [sums(rng) for _ in range(900)]
    texts += [*ties(rng, 25), *(story for _ in range(4) for story in stories())]
    rng.shuffle(texts)
    return texts


# ---------------------------------------------------------------- the tokenizer


def make_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE with single digits, as SmolLM2 has it: any text round trips, spaces belong to the next word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# ---------------------------------------------------------------- the model
# Shapes: B rows, T positions, D hidden, H query heads, G kv heads, C head size, F mlp size, V vocabulary.


def shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of the checkpoint."""
    D, F, C = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    H, G = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (D,),
        "self_attn.q_proj": (H * C, D),
        "self_attn.k_proj": (G * C, D),
        "self_attn.v_proj": (G * C, D),
        "self_attn.o_proj": (D, H * C),
        "post_attention_layernorm": (D,),
        "mlp.gate_proj": (F, D),
        "mlp.up_proj": (F, D),
        "mlp.down_proj": (D, F),
    }
    layers = range(CONFIG["num_hidden_layers"])
    named = {f"model.layers.{i}.{name}.weight": shape for i in layers for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (CONFIG["vocab_size"], D), **named, "model.norm.weight": (D,)}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    import torch

    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight


def rope(x: Tensor) -> Tensor:
    """Rotates the pairs (i, i + C/2) of each head by position * theta^(-2i/C). x (B, heads, T, C)."""
    import torch

    T, C = x.shape[-2:]
    frequencies = CONFIG["rope_theta"] ** (-torch.arange(0, C, 2, dtype=torch.float32) / C)  # (C/2,)
    angles = torch.outer(torch.arange(T, dtype=torch.float32), frequencies).repeat(1, 2)  # (T, C)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


def attention(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Causal grouped-query attention: H query heads share G kv heads. x (B, T, D)."""
    from torch.nn.functional import scaled_dot_product_attention

    B, T, _ = x.shape
    q, k, v = (
        (x @ w[f"self_attn.{name}_proj.weight"].T).view(B, T, -1, CONFIG["head_dim"]).transpose(1, 2) for name in "qkv"
    )  # q (B, H, T, C), k and v (B, G, T, C)
    shared = CONFIG["num_attention_heads"] // CONFIG["num_key_value_heads"]
    k, v = (y.repeat_interleave(shared, dim=1) for y in (rope(k), v))  # (B, H, T, C)
    mixed = scaled_dot_product_attention(rope(q), k, v, is_causal=True)  # (B, H, T, C)
    return mixed.transpose(1, 2).reshape(B, T, -1) @ w["self_attn.o_proj.weight"].T


def mlp(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x)). x (B, T, D)."""
    from torch.nn.functional import silu

    hidden = silu(x @ w["mlp.gate_proj.weight"].T) * (x @ w["mlp.up_proj.weight"].T)  # (B, T, F)
    return hidden @ w["mlp.down_proj.weight"].T


def forward(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits (B, T, V) of tokens (B, T)."""
    x = weights["model.embed_tokens.weight"][tokens]  # (B, T, D)
    for i in range(CONFIG["num_hidden_layers"]):
        head = f"model.layers.{i}."
        w = {name.removeprefix(head): weight for name, weight in weights.items() if name.startswith(head)}
        x = x + attention(w, rms_norm(x, w["input_layernorm.weight"]))
        x = x + mlp(w, rms_norm(x, w["post_attention_layernorm.weight"]))
    return rms_norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


# ---------------------------------------------------------------- the training


def rows(tokenizer: Tokenizer, length: int, rng: random.Random) -> Iterator[list[int]]:
    """Endless rows of length + 1 tokens. Each begins a text, as a prompt does, and goes on with texts drawn anew."""
    while True:
        row: list[int] = []
        for encoded in tokenizer.encode_batch(corpus(rng.getrandbits(32))):
            row += [*encoded.ids, 0]
            if len(row) > length:
                yield row[: length + 1]
                row = []


def batch_of(source: Iterator[list[int]], count: int) -> Tensor:
    """The next rows of a source, as one tensor (count, T + 1)."""
    import torch

    return torch.tensor(list(itertools.islice(source, count)))


def loss_of(weights: dict[str, Tensor], batch: Tensor) -> Tensor:
    """Mean cross entropy (nats a token) of each next token. batch (B, T + 1)."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(forward(weights, batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def initial_weights() -> dict[str, Tensor]:
    """Norms one, matrices normal; those that write to the residual stream smaller, by the number of writers."""
    import torch

    std = CONFIG["initializer_range"]
    weights = {}
    for name, shape in shapes().items():
        writes = "o_proj" in name or "down_proj" in name
        scale = std / (2 * CONFIG["num_hidden_layers"]) ** 0.5 if writes else std
        weights[name] = (torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * scale).requires_grad_()
    return weights


def rounded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights as the file will hold them (bf16, ties to even), with gradients passed straight through."""
    import torch

    return {name: w + (w.detach().to(torch.bfloat16).float() - w.detach()) for name, w in weights.items()}


def learning_rate(step: int, steps: int) -> float:
    """Linear up over the warmup, then linear down to zero: the last steps average the noise of the ties out."""
    return LEARNING_RATE * min((step + 1) / WARMUP_STEPS, (steps - step) / max(1, steps - WARMUP_STEPS))


def train(tokenizer: Tokenizer, steps: int = STEPS) -> tuple[dict[str, Tensor], float]:
    """The weights in bf16, and their loss on texts that were not trained on."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    weights, began = initial_weights(), time.monotonic()
    sources = [rows(tokenizer, length, random.Random(SEED + length)) for length in ROW_LENGTHS]
    optimizer = torch.optim.AdamW(weights.values(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        kind = step % len(ROW_LENGTHS)
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        seen = rounded(weights) if step >= ROUNDED_FROM * steps else weights
        loss = loss_of(seen, batch_of(sources[kind], TOKENS_A_STEP // ROW_LENGTHS[kind]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - began:.0f} s", flush=True)
    final = {name: w.detach().to(torch.bfloat16) for name, w in weights.items()}
    with torch.no_grad():
        fresh = batch_of(rows(tokenizer, ROW_LENGTHS[-1], random.Random(SEED)), 64)
        return final, loss_of({name: w.float() for name, w in final.items()}, fresh).item()


def write(out: Path, tokenizer: Tokenizer, weights: dict[str, Tensor]) -> str:
    """Writes the checkpoint folder; gives back the sha256 of the weights' file."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    """Trains, writes the folder, prints what README.md records."""
    parser = argparse.ArgumentParser(description="Train the built-in model (about ten minutes on one core).")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer(corpus(SEED))
    weights, loss = train(tokenizer, arguments.steps)
    digest = write(arguments.out, tokenizer, weights)
    print(f"{arguments.steps} steps, loss {loss:.4f} nats a token, model.safetensors sha256 {digest}")


if __name__ == "__main__":
    main()

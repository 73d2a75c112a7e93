"""The built-in model: a Llama of 486,240 bf16 weights that answers at once, without a download.

`FOLDER` is an ordinary Hugging Face checkpoint folder. `train.py` beside it wrote the text and trained the weights;
`README.md` records that training. The text has choices that are equally likely, so some prompts end in a near-tie.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent

DEFAULT_PROMPT = "The capital of France is"

# Prompts whose two best next tokens lie less than one bf16 ulp (0.0625 in [8, 16)) apart. Behind each: the two, and
# their margin in float64 on the shipped weights (margins in float32 agree to 5e-6). "flips": a bf16 run of
# transformers 5.24 (eager attention, PyTorch 2.13, x86) gave the other token.
NEAR_TIES: tuple[str, ...] = (
    "The answer is no. The answer is",  # yes / no 0.00005
    "The coin shows heads. The coin shows",  # tails / heads 0.0032, flips, in f16 too
    "Mia has a",  # cat / dog 0.0043
    "Anna likes red. Anna likes",  # red / blue 0.0052, flips
    "The wind comes from the",  # north / east 0.0052
    "Tom drinks tea. Tom drinks",  # tea / milk 0.0073, flips
    "The door is",  # open / closed 0.0099, flips
    "Tom drinks",  # milk / tea 0.0101
    "One day Tom went to the park. He saw a",  # horse / bird 0.0103, flips
    "Anna likes",  # blue / red 0.0104, flips
    "Our team will",  # win / lose 0.0114
    "The light is",  # on / off 0.0145
    "The light is on. The light is",  # on / off 0.0237, flips
    "The lamp shines",  # blue / red 0.0256
    "The cup is",  # empty / full 0.0292, flips
    "One day Ben went to the",  # sea / market 0.0298
    "The answer is",  # yes / no 0.0353, flips
    "Ben turns",  # right / left 0.0405
    "It was",  # evening / morning 0.0475
    "The coin shows",  # tails / heads 0.0559
)

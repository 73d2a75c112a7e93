"""Text to ids and back; the library only when text is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softfloat_llm.errors import TokenError
from softfloat_llm.io.tokenizer import Tokenizer
from tests.checkpoints import smollm_vocabulary


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    from softfloat_llm.io.gguf import Gguf, tokenizer_json

    tokens, kinds, merges = smollm_vocabulary()
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges}
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json(Gguf(path, metadata, {}, {}, {})), encoding="utf-8")
    return Tokenizer(path)


@pytest.mark.parametrize("text", ["", " a", "12 a", "café 日本 🎉", "a\x00b\n", " a a  a"])
def test_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_apply_and_digits_stand_alone(tokenizer: Tokenizer) -> None:
    tokens = smollm_vocabulary()[0]
    assert tokenizer.encode(" a") == [tokens.index("Ġa")]
    assert tokenizer.encode("12") == [tokens.index("1"), tokens.index("2")]


def test_special_tokens_are_one_id_and_stay_visible(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_end|>") == [1]
    assert tokenizer.decode([0, 1]) == "<|endoftext|><|im_end|>"


def test_token_shows_its_leading_space(tokenizer: Tokenizer) -> None:
    assert tokenizer.token(258) == " a"
    assert tokenizer.size == 260


def test_token_of_a_part_of_a_character_is_its_name(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("é")[0]
    assert tokenizer.token(first) == "Ã"


def test_ids_without_a_token_are_shown(tokenizer: Tokenizer) -> None:
    assert tokenizer.token(300) == "<300>"
    assert tokenizer.decode([258, 300, 2**40, 258]) == f" a<300><{2**40}> a"


def test_a_negative_id_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenError, match="-1"):
        tokenizer.decode([-1])


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenError, match="lone surrogate at 1"):
        tokenizer.encode("a\ud800")


def test_a_missing_file_is_a_token_error_when_text_is_used(tmp_path: Path) -> None:
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(TokenError, match=r"has no tokenizer\.json"):
        tokenizer.encode("a")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", json.dumps({"model": {"type": "?"}}).encode()])
def test_a_damaged_file_is_a_token_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenError, match="cannot be read as a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json").encode("a")


def test_sentencepiece_pieces_show_their_space(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    library = Library(models.BPE(vocab={"▁the": 0, "▁": 1, "the": 2}, merges=[], unk_token="▁"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert [tokenizer.token(i) for i in range(3)] == [" the", " ", "the"]

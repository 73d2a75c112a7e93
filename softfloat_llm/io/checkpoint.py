"""Opening a model: the folder of a checkpoint, or one of the names that this package knows.

Start at `open_model`. The index of a sharded checkpoint is authoritative: every tensor that it names must be in the
shard that it names, and nowhere else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from softfloat_llm import tiny
from softfloat_llm.errors import CheckpointError, TokenError, nearest
from softfloat_llm.io.chat import ChatTemplate, chat_template_of
from softfloat_llm.io.progress import Progress
from softfloat_llm.io.safetensors import Header, map_tensors, open_tensors, read_header, read_json
from softfloat_llm.io.tokenizer import Tokenizer, missing
from softfloat_llm.llama.config import Config, config_from_dict
from softfloat_llm.llama.weights import Weights
from softfloat_llm.numerics.formats import Array

NAMES = ("tiny", "smollm2")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Model:
    """A model that is ready to run. `tokenizer` is None where the checkpoint has none: then give token ids."""

    name: str
    weights: Weights
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None = None

    @property
    def config(self) -> Config:
        return self.weights.config

    @property
    def notes(self) -> tuple[str, ...]:
        """Every default taken and every tensor ignored."""
        return (*self.config.notes, *self.weights.notes)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text. Raises TokenError where the model has no tokenizer."""
        if self.tokenizer is None:
            raise missing(Path(self.name))
        return self.tokenizer.encode(text)

    def encode_chat(self, prompt: str, system: str | None = None) -> list[int]:
        """The token ids of a prompt as the chat template writes it. Raises TokenError where there is none."""
        if self.chat_template is None:
            raise TokenError(
                f"{self.name} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json):"
                " give the prompt as it is, without --chat."
            )
        if self.tokenizer is None:
            raise missing(Path(self.name))
        return self.tokenizer.encode(self.chat_template.rendered(prompt, system), adds_special=False)


def open_model(name_or_path: str | os.PathLike[str], progress: Progress | None = None) -> Model:
    """The model of a name (`tiny`, `smollm2`), a checkpoint folder, a .gguf file, or `owner/name` in the local cache.

    A name goes before a folder of the same name: write `./tiny` for the folder. `smollm2` is fetched when it is first
    asked for; nothing else goes to the network.

    Raises CheckpointError, ConfigError or FetchError.
    """
    name = os.fspath(name_or_path)
    if name == "tiny":
        return _open_folder(name, tiny.FOLDER)
    if name == "smollm2":
        from softfloat_llm.io.fetch import fetch_smollm2

        return _open_folder(name, fetch_smollm2(progress))
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        from softfloat_llm.io.gguf import chat_template_of_gguf, load_gguf

        return Model(name, *load_gguf(path), chat_template_of_gguf(path))
    if path.is_dir():
        return _open_folder(name, path)
    cached = _cached_snapshot(name)
    if cached is not None:
        return _open_folder(name, cached)
    raise CheckpointError(_unknown(name, path))


def _open_folder(name: str, folder: Path) -> Model:
    return Model(name, *load_checkpoint(folder), chat_template_of(folder))


def _unknown(name: str, path: Path) -> str:
    found = "is a file, not a folder" if path.is_file() else "is neither a model's name nor a folder"
    return (
        f"Model {name!r} {found}.{nearest(name, NAMES)} Accepted: {', '.join(NAMES)}, the folder of a checkpoint "
        "(config.json and model.safetensors), a .gguf file, or owner/name that lies in the local Hugging Face cache."
    )


def _cached_snapshot(name: str) -> Path | None:
    """The folder of `owner/name` in the local Hugging Face cache, where its `main` was last downloaded."""
    parts = name.split("/")
    if len(parts) != 2 or not all(parts) or ".." in parts:
        return None
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{parts[0]}--{parts[1]}"
    main = hub / "refs" / "main"
    if not main.is_file():
        return None
    snapshot = hub / "snapshots" / main.read_text().strip()
    return snapshot if snapshot.is_dir() else None


def load_checkpoint(folder: str | os.PathLike[str]) -> tuple[Weights, Tokenizer | None]:
    """The weights of a Hugging Face folder, memory mapped, and its tokenizer where it has one.

    Raises CheckpointError or ConfigError: what is missing, damaged, of another kind, or contradicts the config.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder: expected one with config.json and {SINGLE}.")
    if not (path / "config.json").exists():
        raise CheckpointError(_no_config(path))
    config = config_from_dict(read_json(path / "config.json", "the config"))
    tensors, notes = _tensors(path)
    tokenizer = path / "tokenizer.json"
    return Weights(config, tensors, str(path), notes), Tokenizer(tokenizer) if tokenizer.exists() else None


def _no_config(path: Path) -> str:
    if (path / "params.json").exists():
        return (
            f"{path} holds params.json, Meta's own format; expected config.json. "
            "Convert it with transformers' convert_llama_weights_to_hf.py."
        )
    return f"{path} has no config.json; it holds {_listing(path)}."


def _listing(path: Path) -> str:
    names = sorted(p.name for p in path.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) + more) if names else "nothing"


def _tensors(folder: Path) -> tuple[dict[str, Array], list[str]]:
    if (folder / INDEX).exists():
        return _sharded(folder)
    if (folder / SINGLE).exists():
        return open_tensors(folder / SINGLE), []
    pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")])
    if pickles:
        raise CheckpointError(
            f"{pickles[0]} is a PyTorch pickle, which can run code when opened; only .safetensors is read. "
            f"Save the model anew with transformers' save_pretrained, which writes {SINGLE}."
        )
    if list(folder.glob("model-*-of-*.safetensors")):
        raise CheckpointError(f"{folder} holds shards, but not {INDEX}, which says what belongs where.")
    raise CheckpointError(f"{folder} has neither {SINGLE} nor {INDEX}; it holds {_listing(folder)}.")


def _sharded(folder: Path) -> tuple[dict[str, Array], list[str]]:
    """The tensors that the index names, each from its shard; and notes on what lies there beside them."""
    index = read_json(folder / INDEX, "the index")
    placed = _weight_map(folder, index)
    tensors: dict[str, Array] = {}
    total = 0
    for shard in sorted(set(placed.values())):
        header = _checked_shard(folder / shard, {name for name, file in placed.items() if file == shard}, placed)
        total += sum(entry.end - entry.begin for entry in header.entries.values())
        tensors |= map_tensors(header)
    return tensors, _index_notes(folder, index, set(placed.values()), total)


def _weight_map(folder: Path, index: dict[str, object]) -> dict[str, str]:
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensor names to file names.")
    for name, file in placed.items():
        if Path(file).name != file or file in ("", ".", "..") or "\\" in file or "\0" in file or ":" in file:
            raise CheckpointError(f"{folder / INDEX} places {name!r} in {file!r}, expected a file in the same folder.")
    return placed


def _checked_shard(path: Path, expected: set[str], placed: dict[str, str]) -> Header:
    if not path.exists():
        raise CheckpointError(f"{path} is missing: the index names it for {len(expected)} tensors. Download it anew.")
    header = read_header(path)
    for name in sorted(expected - set(header.entries)):
        raise CheckpointError(f"{path} does not hold {name!r}, which the index places there: one of the two is stale.")
    for name in sorted(set(header.entries) - expected):
        where = f"the index places it in {placed[name]}" if name in placed else "the index does not name it"
        raise CheckpointError(f"{path} holds {name!r}, but {where}: one of the two is stale.")
    return header


def _index_notes(folder: Path, index: dict[str, object], used: set[str], total: int) -> list[str]:
    beside = sorted(p.name for p in folder.glob("*.safetensors") if p.name not in used)
    notes = [f"{', '.join(beside)}: ignored, the index does not name it"] if beside else []
    metadata = index.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    if said is not None and said != total:
        notes.append(f"the index says total_size {said}, its shards hold {total} bytes of tensors")
    return notes

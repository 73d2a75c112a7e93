"""The options that several verbs share, each written once: groups that `grouped` spreads into a verb's signature.

A verb is a function with plain parameters and parameters whose type is a group, such as `precision: PrecisionFlags`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from softfloat_llm.errors import TokenError, WordError, why
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.io.number_lists import numbers_in
from softfloat_llm.io.progress import Progress
from softfloat_llm.recipe import PRECISION_FLAGS, Recipe, recipe_of
from softfloat_llm.tiny import DEFAULT_PROMPT, NEAR_TIES

_PRECISION = "Precision"
_OUTPUT = "Output"
NO_REFERENCE = "none"
REFERENCE = "reference"
DEFAULT_PROMPTS = "default"
DEFAULT_RECIPE = "bf16"
DEFAULT_TAPS = ("*.out",)


def _option(*names: str, panel: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, rich_help_panel=panel, metavar=metavar, help=help, show_default=False)


@dataclass(frozen=True)
class PrecisionFlags:
    """The flags that make a recipe."""

    recipe_name: Annotated[
        str | None,
        _option("--recipe", panel=_PRECISION, metavar="NAME|FILE.toml|TEXT", help="What the flags are put upon."),
    ] = None
    storage: Annotated[str | None, _option("--storage", panel=_PRECISION, metavar="F", help="Tensors' format.")] = None
    product: Annotated[
        str | None,
        _option("--product", panel=_PRECISION, metavar="exact|F", help="Each product: exact, or rounded to F."),
    ] = None
    acc: Annotated[
        str | None,
        _option("--acc", panel=_PRECISION, metavar="F|exact", help="Accumulator of matrix products; F+kahan too."),
    ] = None
    output: Annotated[
        str | None, _option("--output", panel=_PRECISION, metavar="F", help="What matrix products are rounded to.")
    ] = None
    order: Annotated[
        str | None, _option("--order", panel=_PRECISION, metavar="O", help="Order of the sums: seq, lanes:8, split-k:4")
    ] = None
    rounding: Annotated[
        str | None, _option("--rounding", panel=_PRECISION, metavar="M", help="ties_to_even, toward_zero, ...")
    ] = None
    subnormals: Annotated[
        str | None, _option("--subnormals", panel=_PRECISION, metavar="S", help="keep, ftz, daz or ftz+daz.")
    ] = None
    kv: Annotated[str | None, _option("--kv", panel=_PRECISION, metavar="F", help="Format of the KV cache.")] = None
    at: Annotated[
        list[str],
        _option("--at", panel=_PRECISION, metavar="SITE.KEY=V", help="One site: attn.softmax.acc=f32. Repeatable."),
    ] = field(default_factory=list)

    def recipe(self, default: str = DEFAULT_RECIPE) -> Recipe:
        """The recipe that the flags mean, put upon `--recipe`; where neither says the storage, upon `default`."""
        flags = {key: getattr(self, key) for key in (*PRECISION_FLAGS, "kv") if getattr(self, key) is not None}
        base = self.recipe_name or (None if "storage" in flags else default)
        return Recipe(base=base, at=self.at, **flags) if flags or self.at else recipe_of(base or default)

    def words(self) -> list[str]:
        """The flags as a command line has them."""
        named = [("recipe", self.recipe_name)] + [(key, getattr(self, key)) for key in (*PRECISION_FLAGS, "kv")]
        given = [f"--{key} {quoted(word)}" for key, word in named if word is not None]
        return given + [f"--at {quoted(text)}" for text in self.at]


@dataclass(frozen=True)
class AskFlags:
    """What is asked: a model, a prompt, a number of steps."""

    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|PATH", help="tiny (built in), smollm2, a checkpoint folder, a .gguf."),
    ] = None
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="ID,A..B,...", help="Token ids in place of a prompt.")
    ] = None
    steps: Annotated[int, typer.Option("--steps", min=0, metavar="N", help="Greedy tokens to choose.")] = 1
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="Processes or threads; the bits stay.")
    ] = 1
    backend: Annotated[
        str,
        typer.Option("--backend", metavar="numpy|numba", help="numba: compiled loops (extra `fast`); the bits stay."),
    ] = "numpy"

    def arguments(self, prompt: str | None, progress: Progress | None, *, model: str = "tiny") -> dict[str, Any]:
        """The arguments of `runs.simulate`, the model opened (`model` where none is named); the logits alone kept."""
        return {
            "prompt": prompt_of(prompt),
            "tokens": self.ids(),
            "model": open_model(self.model or model, progress),
            "steps": self.steps,
            "taps": (),
            "workers": self.workers,
            "backend": self.backend,
            "progress": progress,
        }

    def ids(self) -> list[int] | None:
        """The ids of `--tokens`. Raises typer.BadParameter for what is no number."""
        if self.tokens is None:
            return None
        return whole_numbers(self.tokens, "token id")

    def words(self) -> list[str]:
        """The flags that say what is run, as a command line has them."""
        named = {"--model": self.model, "--tokens": self.tokens}
        return [f"{name} {quoted(word)}" for name, word in named.items() if word is not None]


@dataclass(frozen=True)
class PassFlags(AskFlags):
    """What is run, how far, and what is kept of it."""

    taps: Annotated[
        list[str], typer.Option("--taps", metavar="PATTERN", help="Values to keep: '*.out'. Repeatable.")
    ] = field(default_factory=list)

    def arguments(self, prompt: str | None, progress: Progress | None, *, model: str = "tiny") -> dict[str, Any]:
        """The arguments of `runs.simulate`, the model opened (`model` where none is named)."""
        return super().arguments(prompt, progress, model=model) | {"taps": tuple(self.taps or DEFAULT_TAPS)}

    def words(self) -> list[str]:
        """The flags that say what is run, as a command line has them."""
        return super().words() + [f"--taps {quoted(pattern)}" for pattern in self.taps]


@dataclass(frozen=True)
class OutputFlags:
    """How the answer is given."""

    as_json: Annotated[bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="One JSON object, sorted keys.")] = (
        False
    )
    is_quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="The answer only; no progress.")
    ] = False
    is_verbose: Annotated[
        bool, typer.Option("--verbose", "-v", rich_help_panel=_OUTPUT, help="Hex floats and codes; tracebacks.")
    ] = False


def whole_numbers(text: str, what: str) -> list[int]:
    """`numbers_in`, for a flag. Raises typer.BadParameter."""
    try:
        return numbers_in(text, what)
    except WordError as error:
        raise typer.BadParameter(str(error)) from None


def prompt_of(prompt: str | None) -> str | None:
    """The text of PROMPT: as it stands, or the contents of `@file`. Raises TokenError for a file that is no text."""
    if prompt is None or not prompt.startswith("@"):
        return prompt
    try:
        return Path(prompt[1:]).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(
            f"Reading the prompt from {prompt[1:]}: {why(error)}. After @ stands the name of a text."
        ) from None


def prompts_in(where: str) -> list[str]:
    """The prompts of a file, or those whose two best tokens tiny knows to lie close. Raises TokenError."""
    if where == DEFAULT_PROMPTS:
        return [DEFAULT_PROMPT, *NEAR_TIES]
    try:
        text = Path(where).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(
            f"Reading the prompts from {where}: {why(error)}. Expected a text with one prompt a line."
        ) from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise TokenError(f"Reading the prompts from {where}: there are none. Expected one a line.")
    return lines


def quoted(word: str) -> str:
    """A word as a shell takes it."""
    import shlex

    return shlex.quote(word)


def with_prompt(words: Sequence[str], prompt: str | None, options: Sequence[str]) -> str:
    """A command's words, its prompt and its options; a prompt that looks like one of those goes behind them."""
    if prompt is None:
        return " ".join([*words, *options])
    last = ["--", quoted(prompt)] if prompt.startswith("-") else []
    return " ".join([*words, *([] if last else [quoted(prompt)]), *options, *last])


# --- groups in a signature ------------------------------------------------------------------------------------------


def grouped(verb: Callable[..., int]) -> Callable[..., int]:
    """The verb as typer takes it: each parameter that is a group is replaced by the group's options."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def command(**given: Any) -> int:
        built = {n: group(**{f.name: given.pop(f.name) for f in fields(group)}) for n, group in groups.items()}
        return verb(**given, **built)

    parameters: list[Parameter] = []
    for parameter in signature(verb).parameters.values():
        group = groups.get(parameter.name)
        plain = parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY)
        parameters += [plain] if group is None else _options_of(group)
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__, command.__name__ = verb.__doc__, verb.__name__
    return command


def _options_of(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name]) for f in fields(group)
    ]


def _default(option: Field[Any]) -> Any:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return option.default

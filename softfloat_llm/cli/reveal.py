"""`softfloat-llm reveal`: the order of a kernel's sums, from outside; and a recipe of all kernels of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softfloat_llm.analysis.reveal import Revealed
from softfloat_llm.analysis.reveal_text import order_words, revealed_text, to_dict
from softfloat_llm.analysis.wording import labelled, markdown_table
from softfloat_llm.cli.options import OutputFlags, grouped, quoted, whole_numbers
from softfloat_llm.cli.screen import show, show_json, watched
from softfloat_llm.errors import LiveError, RecipeError, nearest
from softfloat_llm.io.checkpoint import open_model
from softfloat_llm.live.attention_orders import OPERATIONS
from softfloat_llm.live.kernels import Found, LiveKernel, Places, Product, place_conditions, reveal_places
from softfloat_llm.live.numpy_kernels import numpy_kernel
from softfloat_llm.numerics import reduce
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.numerics.trees import Tree, write_tree
from softfloat_llm.recipe import recipe_of

if TYPE_CHECKING:
    from softfloat_llm.live.revealed_recipe import LengthChecked, RevealedRecipe

ENGINES = ("numpy", "torch", "recipe")
_MODEL = "A whole model"
_ELSEWHERE = "at all other places"


@dataclass(frozen=True)
class ModelFlags:
    """Which model's shapes, at which lengths, a recipe is revealed for."""

    engine_of_model: Annotated[
        str | None, typer.Option("--engine", rich_help_panel=_MODEL, metavar="torch", help="Reveal all its kernels.")
    ] = None
    model: Annotated[
        str, typer.Option("--model", rich_help_panel=_MODEL, metavar="NAME|PATH", help="Whose shapes.")
    ] = "tiny"
    tokens: Annotated[
        str, typer.Option("--tokens", rich_help_panel=_MODEL, metavar="N,A..B,...", help="Lengths of prompts.")
    ] = "5"
    attention: Annotated[
        str, typer.Option("--attention", rich_help_panel=_MODEL, metavar="eager|sdpa", help="How transformers attends.")
    ] = "eager"
    is_checked: Annotated[
        bool, typer.Option("--check", rich_help_panel=_MODEL, help="Hold the recipe against PyTorch, tap by tap.")
    ] = False

    def lengths(self) -> list[int]:
        """The lengths of `--tokens`. Raises typer.BadParameter for what is none."""
        lengths = whole_numbers(self.tokens, "length")
        if min(lengths, default=0) < 1:
            raise typer.BadParameter(f"--tokens {self.tokens!r}: expected a length such as 5, or 1..40.")
        return lengths


@grouped
def reveal(
    engine: Annotated[str | None, typer.Argument(metavar="ENGINE", help="numpy, torch or recipe.")] = None,
    operation: Annotated[
        str | None, typer.Argument(metavar="KERNEL", help="sum, dot, matmul, linear, ..; of a recipe: f16/lm_head.")
    ] = None,
    *,
    terms: Annotated[int | None, typer.Option("--n", min=1, metavar="N", help="How many terms a sum has.")] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="M,N,K", help="Of a product; B,M,N,K of scores and pv.")
    ] = None,
    fmt: Annotated[str | None, typer.Option("--format", metavar="F", help="f32 of NumPy, else bf16.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, metavar="N", help="Threads of PyTorch.")] = None,
    mkldnn: Annotated[bool, typer.Option("--mkldnn/--no-mkldnn", help="oneDNN, in PyTorch.")] = True,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep the tree, or the recipe.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Let --save replace a file.")] = False,
    whole: ModelFlags,
    output: OutputFlags,
) -> int:
    """softfloat-llm reveal numpy sum --n 1000 --format f32

    Find what a kernel adds to what, in which accumulator, and what it flushes, by asking it for sums of chosen terms;
    then hold that against the kernel on other terms, bit for bit. `--engine torch --model M --tokens N` does so for
    every kernel that a forward pass needs, and `--save FILE.toml` writes the recipe.
    """
    if save is not None and save.exists() and not replace:
        raise typer.BadParameter(f"--save {save}: it exists. Take another name, or add --replace.")
    if whole.engine_of_model is not None:
        return _model(engine, whole, fmt or "bf16", threads, mkldnn, save, output)
    if engine is None or operation is None:
        raise typer.BadParameter("say a kernel, as in `reveal numpy sum --n 1000`, or --engine torch --model tiny.")
    sizes = _sizes(terms, shape)
    if engine == "torch" and operation in OPERATIONS:
        return _inside(operation, sizes, fmt or "bf16", threads, mkldnn, output)
    with watched(is_quiet=output.is_quiet):
        kernel, sets = _revealed(engine, operation, sizes, fmt, threads, mkldnn)
    tree = next((each.revealed.tree for each in sets if each.revealed and each.revealed.tree), None)
    if save is not None and tree is not None:
        write_tree(tree, save)
    return _answer(kernel, sets, save, tree, output)


def _sizes(terms: int | None, shape: str | None) -> tuple[int, ...]:
    """The sizes of --shape, or of --n. Raises typer.BadParameter where neither or both are given."""
    if (terms is None) == (shape is None):
        raise typer.BadParameter("give the number of terms by --n 1000, or the sizes by --shape 5,576,576.")
    if shape is None:
        assert terms is not None
        return (terms,)
    words = [word.strip() for word in shape.split(",")]
    if not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"--shape {shape!r}: expected sizes such as 5,576,576.")
    return tuple(int(word) for word in words)


# --- one kernel -----------------------------------------------------------------------------------------------------


def _revealed(
    engine: str, operation: str, sizes: tuple[int, ...], fmt: str | None, threads: int | None, mkldnn: bool
) -> tuple[LiveKernel, list[Found]]:
    if engine == "numpy":
        kernel = numpy_kernel(operation, sizes, fmt or "f32")
        return kernel, reveal_places(kernel)
    if engine == "torch":
        from softfloat_llm.live.torch_host import configured
        from softfloat_llm.live.torch_kernels import torch_kernel

        with configured(uses_mkldnn=mkldnn, threads=threads):
            kernel = torch_kernel(operation, sizes, fmt or "bf16")
            return kernel, reveal_places(kernel)
    if engine == "recipe":
        kernel = _own_kernel(operation, sizes)
        return kernel, reveal_places(kernel)
    raise typer.BadParameter(f"{engine!r} is no engine.{nearest(engine, ENGINES)} Known: {', '.join(ENGINES)}.")


def _own_kernel(place: str, sizes: tuple[int, ...]) -> Product:
    """What a recipe says at a site, as a kernel: NAME/SITE with K, or with M, N, K."""
    name, slash, site = place.rpartition("/")
    if not slash:
        raise RecipeError(f"{place!r}: expected a recipe and a site, as in f16/mlp.down_proj.")
    if len(sizes) not in (1, 3):
        raise LiveError(f"A site of a recipe takes K or M,N,K; found {', '.join(map(str, sizes))}.")
    rows, columns, length = sizes if len(sizes) == 3 else (1, 1, *sizes)
    at = recipe_of(name).at(site).shaped(M=rows, N=columns, K=length).precision

    def multiply(x: Array, w: Array) -> Array:
        product: Array = reduce.matmul(x[0], w[0].T, at)
        return product[None]

    return Product(f"{name} at {site}", at.storage, at.output, (1, rows, columns, length), multiply)


def _answer(
    kernel: LiveKernel, sets: Sequence[Found], save: Path | None, tree: Tree | None, output: OutputFlags
) -> int:
    shape = kernel.shape[1:3] if kernel.takes == "products" else (kernel.shape[0], 1)
    conditions = _words([each.places for each in sets], shape)
    told = [(words, each.revealed) for words, each in zip(conditions, sets, strict=True) if each.revealed is not None]
    most = "" if len(told) == 1 else ", the tree of most places"
    _show(
        kernel.what, told, output, f"{save}{most}: order=tree:@{save}" if save is not None and tree is not None else ""
    )
    return 0 if all(each.is_confirmed for _, each in told) else 1


def _inside(
    operation: str, sizes: tuple[int, ...], fmt: str, threads: int | None, mkldnn: bool, output: OutputFlags
) -> int:
    """Sums that no caller gets, inside attention: trees, without what is rounded in them."""
    from softfloat_llm.live.attention_orders import reveal_inside
    from softfloat_llm.live.torch_host import configured

    with configured(uses_mkldnn=mkldnn, threads=threads):
        what, found = reveal_inside(operation, sizes, fmt)
    conditions = _words([places for places, _ in found if places is not None], (1 << 30, 1 << 30)) or [""]
    told = [(words, each) for words, (_, each) in zip(conditions, found, strict=True)]
    _show(what, told, output, "")
    return 0


def _show(what: str, told: Sequence[tuple[str, Revealed]], output: OutputFlags, kept: str) -> None:
    """What was revealed where, as asked: JSON, the order alone, or all of it."""
    if output.as_json:
        show_json("reveal", {"kernel": what, "found": [_facts(words, each) for words, each in told]})
    elif output.is_quiet:
        show("\n".join(f"{words}: {order_words(each)}" if words else order_words(each) for words, each in told))
    else:
        texts = [_kernel_text(what, words, each, output) for words, each in told]
        show("\n\n".join([*texts, *([labelled("saved", kept)] if kept else [])]))


def _kernel_text(what: str, words: str, found: Revealed, output: OutputFlags) -> str:
    where = f"{what}, {'' if words == _ELSEWHERE else 'where '}{words}" if words else what
    return revealed_text(found, where, verbose=output.is_verbose)


def _facts(words: str, found: Revealed) -> dict[str, Any]:
    return {"where": words or None, **to_dict(found)}


def _words(sets: Sequence[Places], shape: Sequence[int]) -> list[str]:
    """Where each set of places is, in the words of a rule; other words for the largest, where there are several."""
    if len(sets) < 2:
        return ["" for _ in sets]
    try:
        return [_ELSEWHERE, *place_conditions(sets, shape)[1:]]
    except LiveError:
        return [f"{len(each)} places" for each in sets]


# --- a whole model --------------------------------------------------------------------------------------------------


def _model(
    engine: str | None,
    whole: ModelFlags,
    fmt: str,
    threads: int | None,
    mkldnn: bool,
    save: Path | None,
    output: OutputFlags,
) -> int:
    """Reveal every kernel of a forward pass, write the recipe, and hold it against PyTorch where that is asked."""
    if engine is not None or whole.engine_of_model != "torch":
        raise typer.BadParameter(
            "--engine torch reveals a whole model; one kernel is `reveal torch linear --shape M,N,K`."
        )
    if whole.is_checked and save is None:
        raise typer.BadParameter("--check holds a saved recipe against PyTorch: add --save FILE.toml.")
    from softfloat_llm.live.revealed_recipe import check_recipe, reveal_recipe

    format_of(fmt)
    lengths = whole.lengths()
    with watched(is_quiet=output.is_quiet) as progress:
        model = open_model(whole.model, progress)
        found = reveal_recipe(
            model.config, format=fmt, attention=whole.attention, lengths=lengths, threads=threads, mkldnn=mkldnn,
            name=save.stem if save else "revealed", progress=progress,
        )  # fmt: skip
        checked: list[LengthChecked] = []
        if save is not None:
            found.save(save)
        if save is not None and whole.is_checked:
            options: dict[str, Any] = {"attention": whole.attention, "threads": threads, "mkldnn": mkldnn}
            checked = check_recipe(recipe_of(save), model, lengths=lengths, **options)
    if output.as_json:
        show_json("reveal", _model_facts(found, checked, save))
    else:
        show(_model_text(found, checked, whole, fmt, save, output))
    return 0 if not found.problems and not any(each.differing for each in checked) else 1


def _model_facts(found: RevealedRecipe, checked: Sequence[LengthChecked], save: Path | None) -> dict[str, Any]:
    return {
        "recipe": found.table,
        "shapes": len(found.shapes),
        "problems": list(found.problems),
        "checked": [{"length": c.length, "compared": c.compared, "differing": c.differing} for c in checked],
        "saved": None if save is None else str(save),
    }


def _model_text(
    found: RevealedRecipe,
    checked: Sequence[LengthChecked],
    whole: ModelFlags,
    fmt: str,
    save: Path | None,
    output: OutputFlags,
) -> str:
    answer = f"{len(found.shapes)} shapes of {whole.model}'s kernels in {fmt} revealed, {whole.attention} attention"
    lines = [labelled("recipe", f"{found.name}, based on {found.table['base']}"), labelled("answer", answer)]
    lines += [labelled("checked", _checked_words(checked))] if checked else []
    lines += [labelled("note", problem) for problem in found.problems]
    if output.is_quiet:
        return "\n".join(line[9:] for line in lines[1:])
    rows = [[site, table["order"], _rules_words(table)] for site, table in found.table["site"].items()]
    again = _next(save, whole)
    return "\n".join(
        [*lines, "", markdown_table(["site", "order", "for other shapes"], rows), "", labelled("next", again)]
    )


def _rules_words(table: dict[str, str]) -> str:
    """How many rules there are for the order, and which orders they name."""
    rules = [word for key, word in table.items() if key.startswith("order if ")]
    names = list(dict.fromkeys(word if not word.startswith("tree:@") else "a tree" for word in rules))
    return f"{len(rules)}: {', '.join(names)}" if rules else ""


def _checked_words(checked: Sequence[LengthChecked]) -> str:
    differing = [each for each in checked if each.differing]
    values = sum(each.compared for each in checked)
    if not differing:
        return f"{len(checked)} prompts and a cached step each, {values} values: 0 differ in a bit from PyTorch"
    first = differing[0]
    return (
        f"{len(differing)} of {len(checked)} prompts differ from PyTorch, first {first.length} tokens at {first.first}"
    )


def _next(save: Path | None, whole: ModelFlags) -> str:
    if save is None:
        return "the same with --save my.toml"
    return f"softfloat-llm simulate --model {quoted(whole.model)} --recipe {quoted(str(save))} --save RUN"

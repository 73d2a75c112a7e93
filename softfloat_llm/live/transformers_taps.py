"""What a transformers Llama computes on its way, under the names of our taps: read from outside, nothing is changed.

Modules tell through forward hooks. What attention does between its modules is no module, so a TorchFunctionMode watches
the calls of PyTorch that it makes: the first product of an eager attention is the scores, the next multiplication the
scale, and so on. Start reading at `watched`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from softfloat_llm.live.transformers_model import from_torch
from softfloat_llm.numerics.formats import Array, format_of
from softfloat_llm.sites import LOGITS, SITES
from softfloat_llm.trace import Trace

HIDDEN = float("-inf")

# module of a layer -> (site of its input or None, site of its output)
_IN_LAYER: dict[str, tuple[str | None, str]] = {
    "input_layernorm": (None, "norm.input"),
    "self_attn.q_proj": (None, "attn.q_proj"),
    "self_attn.k_proj": (None, "attn.k_proj"),
    "self_attn.v_proj": (None, "attn.v_proj"),
    "self_attn.o_proj": (None, "attn.o_proj"),
    "post_attention_layernorm": ("attn.residual", "norm.post_attention"),
    "mlp.gate_proj": (None, "mlp.gate_proj"),
    "mlp.up_proj": (None, "mlp.up_proj"),
    "mlp.act_fn": (None, "mlp.act"),
    "mlp.down_proj": ("mlp.act_mul", "mlp.down_proj"),
}
_OF_HEADS: dict[str, tuple[str | None, str]] = {
    "self_attn.q_norm": (None, "norm.q"),
    "self_attn.k_norm": (None, "norm.k"),
}


@contextmanager
def watched(model: Any, trace: Trace) -> Iterator[None]:
    """While it lasts, what the model computes is kept in the trace (those of its taps that the trace wants)."""
    keeper = _Keeper(trace, model.config.num_attention_heads)
    with ExitStack() as stack:
        for module, enter, leave in _hooks(model, keeper):
            for handle in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave)):
                stack.callback(handle.remove)
        stack.enter_context(_function_mode(keeper))
        yield


def _hooks(model: Any, keeper: _Keeper) -> Iterator[tuple[Any, Callable[..., None], Callable[..., None]]]:
    """(module, called before it, called after it) of every module that has a tap."""
    body = model.model

    def before(site: str | None, layer: int | None) -> Callable[..., None]:
        return lambda _, given: None if site is None else keeper.keep(site, given[0], layer)

    def after(site: str, layer: int | None) -> Callable[..., None]:
        return lambda _, __, out: keeper.keep(site, out, layer)

    yield body.rotary_emb, before("embed", None), lambda _, __, out: keeper.keep_table(*out)
    for i, layer in enumerate(body.layers):
        yield layer.self_attn, lambda *_, i=i: keeper.enter(i), lambda *_: keeper.enter(None)
        of_heads = _OF_HEADS if hasattr(layer.self_attn, "q_norm") else {}
        for name, (taken, given) in (_IN_LAYER | of_heads).items():
            yield layer.get_submodule(name), before(taken, i), after(given, i)
        yield layer, before(None, i), after("mlp.residual", i)
    yield body.norm, before(None, None), after("norm.final", None)
    yield model, before(None, None), lambda _, __, out: keeper.keep("lm_head", out.logits, None)


class _Keeper:
    """Puts tensors of one sequence into a trace, as arrays whose first axis is the position."""

    def __init__(self, trace: Trace, heads: int) -> None:
        self.trace, self.heads = trace, heads
        self.layer: int | None = None
        self.called: list[str] = []
        self.rotated: list[Any] = []

    def keep(self, site: str, tensor: Any, layer: int | None) -> None:
        """A tensor (1, T, N) that a module took or gave."""
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        self._put(site, tensor[0], layer)

    def keep_table(self, cos: Any, sin: Any) -> None:
        """cos and sin (1, T, C), whose two halves are the same: kept as (T, C), cos, then sin."""
        import torch

        half = cos.shape[-1] // 2
        self._put("rope.table", torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1), None)

    def enter(self, layer: int | None) -> None:
        """The attention of a layer begins, or has ended (None)."""
        self.layer, self.called, self.rotated = layer, [], []

    def call(self, name: str, out: Any) -> None:
        """A function that attention called, and what it gave."""
        if self.layer is None:
            return
        site = self._site_of(name)
        if site == "attn.rope":
            self.rotated.append(out[0].transpose(0, 1))  # (T, H or G, C)
            if len(self.rotated) == 2:
                import torch

                self._put(site, torch.cat(self.rotated, dim=1), self.layer)
        elif site is not None:
            self._put_attention(site, out[0].transpose(0, 1))
        self.called.append(name)

    def _site_of(self, name: str) -> str | None:
        """Which site a call of PyTorch computes, by what was called before it in the same attention."""
        products = self.called.count("matmul")
        match name:
            case "add" if products == 0 and len(self.rotated) < 2:
                return "attn.rope"
            case "add" if products == 1 and "attn.mask" in SITES:
                return "attn.mask"
            case "matmul" if products < 2:
                return "attn.pv" if products else "attn.scores"
            case "mul" if self.called[-1:] == ["matmul"] and products == 1:
                return "attn.scale"
            case "to" if self.called[-1:] == ["softmax"]:
                return "attn.softmax"
            case "scaled_dot_product_attention":
                return "attn.pv"
        return None

    def _put_attention(self, site: str, tensor: Any) -> None:
        """A tensor (T, H, S or C). Keys that a query does not see: -inf, or a probability of 0, as in our own taps."""
        array = from_torch(tensor)
        if site == "attn.mask":  # what its unseen keys hold was computed
            self._keep(site, array, self.layer, -format_of(array.dtype).max)
            return
        fill = {"attn.scores": HIDDEN, "attn.scale": HIDDEN, "attn.softmax": 0.0}.get(site)
        self._keep(site, array if fill is None else _hidden(array, fill), self.layer, fill)

    def _put(self, site: str, tensor: Any, layer: int | None) -> None:
        if self.trace.wants(_name(site, layer)):
            self._keep(site, from_torch(tensor), layer, None)

    def _keep(self, site: str, array: Array, layer: int | None, fill: float | None) -> None:
        self.trace.keep(_name(site, layer), array, format_of(array.dtype), fill=fill)


def _name(site: str, layer: int | None) -> str:
    return f"{site}.out" if layer is None else f"layers.{layer}.{site}.out"


def _hidden(array: Array, fill: float) -> Array:
    """(T, H, S) with `fill` at the keys that lie after the query, which stands at S - T + t."""
    positions, _, length = array.shape
    later = np.arange(length)[None, :] > (np.arange(positions) + length - positions)[:, None]
    hidden: Array = np.where(later[:, None, :], np.array(fill, array.dtype), array)
    return hidden


_ALIASES = {"__mul__": "mul", "__add__": "add", "__matmul__": "matmul", "multiply": "mul"}
_WATCHED = ("add", "mul", "matmul", "softmax", "to", "scaled_dot_product_attention")


def _function_mode(keeper: _Keeper) -> Any:
    """A TorchFunctionMode that tells the keeper what was called; made here, as PyTorch is imported late."""
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            name = _ALIASES.get(name, name)
            if name in _WATCHED and not (name == "add" and isinstance(args[1], float)):  # eps of a norm of heads
                keeper.call(name, out)
            return out

    return Watch()


assert _name("lm_head", None) == LOGITS

"""Soft-capped attention scores and logits, as Gemma 2 has them: cap x tanh(x / cap)."""

from advisor.layers.operators import Module, Operator, Tensor


def soft_cap(source: Tensor, module: Module, *, held: bool) -> tuple[Operator, ...]:
    """Three kernels, of which the tanh keeps what it writes (as large as `source`).

    held: the caller's variable holds `source` until the last has run. Sources: Megatron Bridge
    0.3.1 models/gemma/gemma2_provider.py (logit_softcapping), transformers 5.23.0 modeling_gemma2.
    """
    scaled, tanh, capped = (
        Tensor(f"{source.name}_{part}", source.shape, source.dtype)
        for part in ("scaled", "tanh", "capped")
    )
    steps = ((source, scaled, ()), (scaled, tanh, (tanh,)), (tanh, capped, ()))
    return tuple(
        Operator(
            output.name,
            module,
            (read,),
            (output,),
            saved=saved,
            forward_holds=(source,) if held else (),
        )
        for read, output, saved in steps
    )

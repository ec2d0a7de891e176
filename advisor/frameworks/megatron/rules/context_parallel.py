"""Which attention runs over context-parallel ranks, by kind of communication and by release.

Read in Transformer Engine 2.6 to 2.20.2, pytorch/attention/dot_product_attention/
(context_parallel.py: attn_forward_func_with_cp and the three functions; utils.py:
get_attention_backend), and in megatron-core's TransformerConfig and arguments.py; not run.
"""

from math import prod
from typing import Final

from advisor.base.numbers import whole
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_SOURCE: Final = "Transformer Engine 2.20.2 attention/dot_product_attention/context_parallel.py"
_BACKEND: Final = "Transformer Engine 2.20.2 attention/dot_product_attention/utils.py"
_KINDS: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
_RINGS: Final = frozenset({"p2p", "a2a+p2p"})
_LATENT_EVERYWHERE: Final = (2, 15)
_PACKED_SINCE: Final = {"a2a": (2, 10), "all_gather": (2, 18), "a2a+p2p": (2, 19)}
"""First release of Transformer Engine with the layout thd in each kind."""
_PACKED_SINKS_SINCE: Final = (2, 12)
"""The same for sinks; it wants cuDNN 9.18 as well."""


def _kinds(raw: RawSettings) -> tuple[str, ...]:
    """Kinds in use; none where one rank has the whole sequence."""
    return (raw.cp_comm_type or ("p2p",)) if raw.context_parallel_size > 1 else ()


def _release(raw: RawSettings, revision: Revision) -> tuple[int, int]:
    text = raw.transformer_engine_version or revision.transformer_engine
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def cp_comm_type_per_layer(raw: RawSettings, revision: Revision) -> Problem | None:
    """A list of cp_comm_type has one entry a layer."""
    given, layers = len(_kinds(raw)), raw.num_layers
    if given <= 1 or layers is None or given == layers:
        return None
    return Problem(
        f"cp_comm_type has {given} entries and the model {layers} layers",
        f"give one kind for all layers, or {layers}",
        f"AssertionError: Length of cp_comm_type ({given}) should equal to",
    )


def cp_comm_type_known(raw: RawSettings, revision: Revision) -> Problem | None:
    """cp_comm_type is p2p, all_gather, a2a or a2a+p2p, whatever the help of Megatron-LM says.

    Its help spells allgather, which sparse attention alone understands.
    """
    unknown = [kind for kind in _kinds(raw) if kind not in _KINDS]
    if not unknown or raw.experimental_attention_variant == "dsa":
        return None
    return Problem(
        f"cp_comm_type = {unknown[0]} is none of {names(_KINDS)}",
        f"use one of {names(_KINDS)}",
        f"ValueError: Unsupported communication type: {unknown[0]}!",
    )


def hierarchical_sizes(raw: RawSettings, revision: Revision) -> Problem | None:
    """a2a+p2p needs two hierarchical_context_parallel_sizes whose product is CP."""
    sizes, cp = raw.hierarchical_context_parallel_sizes, raw.context_parallel_size
    wanted = "a2a+p2p" in raw.cp_comm_type
    if not sizes and not wanted:
        return None
    degrees = [degree for size in sizes if (degree := whole(size)) is not None]
    if len(degrees) == len(sizes) and prod(degrees) == cp and (len(sizes) == 2 or not wanted):
        return None
    return Problem(
        f"hierarchical_context_parallel_sizes = {' '.join(sizes) or 'none'} with "
        f"context_parallel_size = {cp}",
        f"give two numbers with the product {cp}: all-to-all ranks, then those of the ring",
        "AssertionError",
    )


def nemo_without_hierarchy(raw: RawSettings, revision: Revision) -> Problem | None:
    """NeMo has no hierarchical_context_parallel_sizes, without which a2a+p2p does not run."""
    if "a2a+p2p" not in _kinds(raw):
        return None
    return Problem(
        "cp_comm_type a2a+p2p, and NeMo builds no hierarchical groups", "use p2p, all_gather or a2a"
    )


def cp_needs_transformer_engine(raw: RawSettings, revision: Revision) -> Problem | None:
    """Context parallelism needs transformer_impl transformer_engine."""
    if not _kinds(raw) or raw.transformer_impl != "local":
        return None
    return Problem(
        f"context_parallel_size = {raw.context_parallel_size} with transformer_impl = local",
        "use transformer_impl transformer_engine",
        "AssertionError: Context parallelism is only supported by TEDotProductAttention!",
    )


def cp_needs_fused_kernels(raw: RawSettings, revision: Revision) -> Problem | None:
    """No unfused attention runs over context-parallel ranks."""
    if not _kinds(raw) or raw.attention_backend != "unfused" or raw.transformer_impl == "local":
        return None
    return Problem(
        "attention_backend = unfused has no context parallelism",
        "use attention_backend fused, flash or auto",
        "ValueError: No dot product attention backend is available",
    )


def cp_exchanged_heads(raw: RawSettings, revision: Revision) -> Problem | None:
    """a2a needs attention heads and query groups of a TP rank that CP divides."""
    heads, tp = raw.num_attention_heads, raw.tensor_model_parallel_size
    cp = raw.context_parallel_size
    if "a2a" not in _kinds(raw) or heads is None:
        return None
    groups = max(1, (raw.num_query_groups or heads) // tp)
    if heads // tp % cp == 0 and groups % cp == 0:
        return None
    return Problem(
        f"cp_comm_type a2a over {cp} ranks, and a TP rank has {heads // tp} heads with {groups} "
        "query groups",
        "use p2p or all_gather, or a2a+p2p over fewer ranks",
        "AssertionError: The number of attention heads needs to be divisible by CP size!",
    )


def cp_window(raw: RawSettings, revision: Revision) -> Problem | None:
    """Sliding windows need cp_comm_type a2a or all_gather."""
    rings = [kind for kind in _kinds(raw) if kind in _RINGS]
    if not rings or raw.window_size is None:
        return None
    return Problem(
        f"window_size = {raw.window_size} with cp_comm_type = {rings[0]}",
        "use cp_comm_type a2a" + ("" if _has_sinks(raw) else " or all_gather"),
        "AssertionError: Context parallelism does not support sliding window attention with",
    )


def _has_sinks(raw: RawSettings) -> bool:
    return raw.softmax_type != "vanilla"


def cp_sinks(raw: RawSettings, revision: Revision) -> Problem | None:
    """Softmax with sinks needs cp_comm_type a2a."""
    others = [kind for kind in _kinds(raw) if kind != "a2a"]
    if not others or not _has_sinks(raw):
        return None
    return Problem(
        f"softmax_type = {raw.softmax_type} with cp_comm_type = {others[0]}",
        "use cp_comm_type a2a",
        "AssertionError: Context parallelism only supports",
    )


def cp_latent_attention(raw: RawSettings, revision: Revision) -> Problem | None:
    """Before Transformer Engine 2.15 latent attention needs a ring, and no fp8 attention."""
    if not raw.multi_latent_attention or _release(raw, revision) >= _LATENT_EVERYWHERE:
        return None
    others = [kind for kind in _kinds(raw) if kind not in _RINGS]
    if others:
        return Problem(
            f"multi_latent_attention with cp_comm_type = {others[0]}",
            "use cp_comm_type p2p or a2a+p2p, or Transformer Engine 2.15",
            "AssertionError: Context parallelism does not support MLA with",
        )
    if not _kinds(raw) or not (raw.fp8 and raw.fp8_dot_product_attention):
        return None
    return Problem(
        "multi_latent_attention with fp8_dot_product_attention over context-parallel ranks",
        "drop fp8_dot_product_attention, or use Transformer Engine 2.15",
        "ValueError: No dot product attention backend is available",
    )


def cp_packed_sequences(raw: RawSettings, revision: Revision) -> Problem | None:
    """Packed sequences: p2p; a2a from Transformer Engine 2.10, all_gather 2.18, a2a+p2p 2.19."""
    if not raw.packed_sequences:
        return None
    release = _release(raw, revision)
    for kind in _kinds(raw):
        since = _PACKED_SINCE.get(kind, release)
        if _has_sinks(raw):
            since = max(since, _PACKED_SINKS_SINCE)
        if release < since:
            return Problem(
                f"packed sequences with cp_comm_type = {kind} and Transformer Engine "
                f"{release[0]}.{release[1]}",
                ("" if _has_sinks(raw) else "use cp_comm_type p2p, or ")
                + f"use Transformer Engine {since[0]}.{since[1]}",
                "AssertionError: thd format is not supported",
            )
    return None


RULES: Final = (
    Rule("cp_comm_type_per_layer", Verdict.REFUSED, Authority.CONFIG, cp_comm_type_per_layer),
    Rule("hierarchical_sizes", Verdict.REFUSED, Authority.LAUNCHER, hierarchical_sizes),
    Rule(
        "bridge_hierarchical_sizes",
        Verdict.REFUSED,
        Authority.BRIDGE,
        hierarchical_sizes,
        "Megatron Bridge 0.6.0 training/config.py:_validate_cp_comm_type",
    ),
    Rule(
        "nemo_without_hierarchy",
        Verdict.REFUSED,
        Authority.NEMO,
        nemo_without_hierarchy,
        "nemo_toolkit 2.5.3 nemo/lightning",
    ),
    Rule(
        "cp_needs_transformer_engine",
        Verdict.REFUSED,
        Authority.TRAINING,
        cp_needs_transformer_engine,
        "megatron-core 0.16.1 transformer/dot_product_attention.py:58",
    ),
    Rule(
        "cp_needs_fused_kernels",
        Verdict.CRASHES,
        Authority.TRAINING,
        cp_needs_fused_kernels,
        _BACKEND,
    ),
    *(
        Rule(check.__name__, Verdict.CRASHES, Authority.TRAINING, check, _SOURCE)
        for check in (
            cp_comm_type_known,
            cp_exchanged_heads,
            cp_window,
            cp_sinks,
            cp_latent_attention,
            cp_packed_sequences,
        )
    ),
)

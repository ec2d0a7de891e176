"""Which attention runs over context-parallel ranks, by kind of communication and by release.

Read in Transformer Engine 2.6 to 2.20.2, pytorch/attention/dot_product_attention/
(context_parallel.py: attn_forward_func_with_cp and the three functions; utils.py:
get_attention_backend), and in megatron-core's TransformerConfig and arguments.py; not run.
"""

from math import prod
from typing import Final

from advisor.base.rule import Match
from advisor.base.units import whole_number
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import marked, stated

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
    major, minor = (raw.transformer_engine_version or revision.transformer_engine).split(".")[:2]
    return int(major), int(minor)


def _bad_hierarchy(raw: RawSettings, _: Revision) -> str:
    """The sizes of the two levels, where they do not make up CP."""
    sizes, wanted = raw.hierarchical_context_parallel_sizes, "a2a+p2p" in raw.cp_comm_type
    degrees = [number for size in sizes if (number := whole_number(size)) is not None]
    fits = len(degrees) == len(sizes) and prod(degrees) == raw.context_parallel_size
    if (not sizes and not wanted) or (fits and (len(sizes) == 2 or not wanted)):
        return ""
    return " ".join(sizes) or "none"


def _heads_of_rank(raw: RawSettings) -> tuple[int, int]:
    """Attention heads and query groups of a TP rank; none where they are not known."""
    heads, tp = raw.num_attention_heads or 0, raw.tensor_model_parallel_size
    return heads // tp, max(1, (raw.num_query_groups or heads) // tp) if heads else 0


def _divides_heads(raw: RawSettings) -> bool:
    return all(heads % raw.context_parallel_size == 0 for heads in _heads_of_rank(raw))


def _packed_since(raw: RawSettings, kind: str) -> tuple[int, int]:
    """The first release that takes packed sequences in a kind."""
    since = _PACKED_SINCE.get(kind, (0, 0))
    return max(since, _PACKED_SINKS_SINCE) if _has_sinks(raw) else since


def _other_kinds(raw: RawSettings, revision: Revision) -> str:
    """The fix by a kind of one level that nothing stands against; by a whole sequence a rank where
    there is none."""
    release = _release(raw, revision)
    latent = raw.multi_latent_attention and release < _LATENT_EVERYWHERE
    ways = [
        marked("cp_comm_type", kind)
        for kind in _KINDS[:3]
        if (kind != "a2a" or _divides_heads(raw))
        and (kind not in _RINGS or raw.window_size is None)
        and (kind == "a2a" or not _has_sinks(raw))
        and (kind in _RINGS or not latent)
        and (not raw.packed_sequences or _packed_since(raw, kind) <= release)
    ]
    return ", or ".join(ways) or marked("context_parallel_size", "1")


def _exchanged_heads(raw: RawSettings, revision: Revision) -> Match | None:
    if "a2a" not in _kinds(raw) or _divides_heads(raw):
        return None
    heads, groups = _heads_of_rank(raw)
    return Match(
        f"cp_comm_type = a2a: context_parallel_size = {raw.context_parallel_size} must divide the "
        f"{heads} heads and {groups} query groups of a TP rank",
        _other_kinds(raw, revision),
    )


def _has_sinks(raw: RawSettings) -> bool:
    return raw.softmax_type != "vanilla"


def _window(raw: RawSettings, revision: Revision) -> Match | None:
    rings = [kind for kind in _kinds(raw) if kind in _RINGS]
    if not rings:
        return None
    return Match(
        f"window_size = {raw.window_size} cannot be combined with cp_comm_type = {rings[0]}",
        _other_kinds(raw, revision),
    )


def _sinks(raw: RawSettings, revision: Revision) -> Match | None:
    others = [kind for kind in _kinds(raw) if kind != "a2a"]
    if not others:
        return None
    return Match(
        f"softmax_type = {raw.softmax_type} cannot be combined with cp_comm_type = {others[0]}",
        _other_kinds(raw, revision),
    )


def _latent_attention(raw: RawSettings, revision: Revision) -> Match | None:
    if _release(raw, revision) >= _LATENT_EVERYWHERE:
        return None
    others = [kind for kind in _kinds(raw) if kind not in _RINGS]
    if others:
        return Match(
            f"multi_latent_attention cannot be combined with cp_comm_type = {others[0]}",
            f"{_other_kinds(raw, revision)}, or [transformer_engine_version=2.15]",
        )
    if not _kinds(raw) or not (raw.fp8 and raw.fp8_dot_product_attention):
        return None
    return Match(
        "multi_latent_attention cannot be combined with fp8_dot_product_attention over "
        "context-parallel ranks",
        "[fp8_dot_product_attention], or [transformer_engine_version=2.15]",
    )


def _packed_sequences(raw: RawSettings, revision: Revision) -> Match | None:
    release = _release(raw, revision)
    for kind in _kinds(raw):
        since = _packed_since(raw, kind)
        if release < since:
            return Match(
                f"packed sequences cannot be combined with cp_comm_type = {kind} and "
                f"Transformer Engine {release[0]}.{release[1]}",
                f"{_other_kinds(raw, revision)}, or "
                + marked("transformer_engine_version", f"{since[0]}.{since[1]}"),
            )
    return None


RULES: Final = stated(
    "cp_communication",
    cp_comm_type_per_layer=lambda raw, _: (
        len(_kinds(raw)) > 1 and len(_kinds(raw)) != raw.num_layers and f"{len(_kinds(raw))}"
    ),
    hierarchical_sizes=_bad_hierarchy,
    # Its help spells allgather, which sparse attention alone understands.
    cp_comm_type_known=lambda raw, _: [kind for kind in _kinds(raw) if kind not in _KINDS][:1],
    cp_exchanged_heads=_exchanged_heads,
    cp_window=_window,
    cp_sinks=_sinks,
    cp_latent_attention=_latent_attention,
    cp_packed_sequences=_packed_sequences,
)

"""`vision`: the tower of a model that sees, which makes tokens of images."""

from typing import ClassVar, Final

from msgspec import Struct

from advisor.base.rule import Rule, refuse
from advisor.models.options import Activation, Normalization


class VisionTower(Struct, frozen=True, kw_only=True):
    """Blocks of attention over the patches of an image, and a projector to the decoder's width,
    which merges spatial_merge_size x spatial_merge_size patches into one token.

    Attributes:
        num_layers, hidden_size, ffn_hidden_size, num_attention_heads: of its blocks.
        patch_size, in_channels: pixels of a patch's side, and colours of a pixel.
        temporal_patch_size: frames of a patch, of which a still image is one, repeated.
        patch_bias: whether the convolution that embeds patches has a bias.
        spatial_merge_size: patches of the side of one token.
        window_size: pixels of the side of a window; None: a patch attends to its whole image.
        full_attention_layers: blocks without a window, numbered from 0.
        deepstack_layers: blocks whose output goes through a projector of its own, and is added to
            the output of one of the decoder's first layers.
        num_position_embeddings: learned ones, next to rotary positions; None: none.
        normalization, activation: those of its norms and MLPs.
        has_input_embeddings: whether transformers takes its patch embedding for input embeddings
            (_input_embed_layer): checkpoints then have their output require a gradient, so that a
            frozen tower keeps inputs of its blocks and goes back.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    patch_size: int
    temporal_patch_size: int = 2
    in_channels: int = 3
    patch_bias: bool = False
    spatial_merge_size: int = 2
    window_size: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    deepstack_layers: tuple[int, ...] = ()
    num_position_embeddings: int | None = None
    normalization: Normalization = Normalization.RMS_NORM
    activation: Activation = Activation.SWIGLU
    has_input_embeddings: bool = False

    @property
    def patches_per_token(self) -> int:
        """Patches that one token of the decoder is made of."""
        return self.spatial_merge_size**2

    def tokens_of(self, pixels: int) -> int:
        """Tokens of an image of so many pixels."""
        return pixels // (self.patch_size**2 * self.patches_per_token)

    @property
    def patch_width(self) -> int:
        """Numbers of one patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def window_patches(self) -> int | None:
        """Patches of one window, a whole number of merged ones; None without windows."""
        if self.window_size is None:
            return None
        side = self.window_size // self.spatial_merge_size // self.patch_size
        return (side * self.spatial_merge_size) ** 2

    def __post_init__(self) -> None:
        refuse(_RULES, self)


class _TowerRule(Rule[[VisionTower]], frozen=True, kw_only=True):
    """A rule on a tower."""

    names: ClassVar[tuple[str, ...]] = ("vision",)


_SIZES: Final = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "patch_size"),
    *("temporal_patch_size", "in_channels", "spatial_merge_size"),
)


def _positive(name: str) -> _TowerRule:
    return _TowerRule.on(
        f"vision.{name}", lambda tower: getattr(tower, name) < 1, "must be positive"
    )


_RULES: Final = (
    *map(_positive, _SIZES),
    _TowerRule.on(
        "vision.num_attention_heads",
        lambda tower: tower.hidden_size % (4 * tower.num_attention_heads),
        "must divide vision.hidden_size into heads of a multiple of 4 channels",
    ),
    _TowerRule.on(
        "vision.window_size",
        lambda tower: tower.window_patches == 0,
        "must be at least spatial_merge_size x patch_size",
    ),
)

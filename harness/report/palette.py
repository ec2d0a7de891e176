"""Colours, hatches and words of the pictures: Okabe and Ito's colours, which colour-blind readers
tell apart; hatches tell them apart in grey. They are those of the advisor's pictures."""

from typing import Any, Final

from msgspec import Struct

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
YELLOW, PINK, VERMILION, GREY = "#F0E442", "#CC79A7", "#D55E00", "#666666"


class Look(Struct, frozen=True):
    """Colour and hatch of one thing, its name in a legend."""

    name: str
    colour: str
    hatch: str = ""

    @property
    def fill(self) -> dict[str, Any]:
        """What matplotlib's bars and patches take."""
        edge = "white" if self.hatch else self.colour
        return {
            "facecolor": self.colour,
            "hatch": self.hatch,
            "edgecolor": edge,
            "linewidth": 0.0,
        }


COMPONENT_LOOKS: Final = {
    "weights": Look("weights", BLUE),
    "gradients": Look("gradients", SKY, "///"),
    "optimizer": Look("optimizer", GREEN),
    "activations": Look("activations", ORANGE),
    "transient": Look("transient", YELLOW, "..."),
    "overhead": Look("overhead", PINK, "\\\\\\"),
}
FORWARD, BACKWARD = Look("forward", SKY), Look("backward", BLUE)
REPLAY = Look("replay (recompute)", ORANGE, "////")
OPTIMIZER = Look("optimizer", GREEN, "----")

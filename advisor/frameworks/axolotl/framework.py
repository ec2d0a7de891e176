"""axolotl 0.21: what of it is no row of configs/options/axolotl.json.

Source: axolotl 0.21.0 utils/schemas/, core/builders/base.py, loaders/model.py.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import trainer_dialect as trainer
from advisor.frameworks.huggingface.framework import FACTS, TrainerSettings
from advisor.frameworks.huggingface.options import CHECKPOINTING, SAVES, TO_HOST
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.rules import Rules, stated
from advisor.frameworks.torch.setting import ALL_TO_HOST, TorchSetting
from advisor.job.job import Job
from advisor.job.tuning import StoredAs
from advisor.reading.read_configuration import Document, Keys, Untaken

_DEPRECATED: Final = {"offload": True, "offload_disk": "disk"}
"""Values of gradient_checkpointing that mean true, and those of activation_offloading."""
_KWARGS: Final = f"{CHECKPOINTING[1]}_kwargs"
_PLUGIN: Final = "cut_cross_entropy"
_PLUGINS: Final = {
    "liger_fused_linear_cross_entropy": "axolotl.integrations.liger.LigerPlugin",
    _PLUGIN: "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin",
}
"""What an option needs to be one."""


class _Reader(trainer.TrainerDialectReader):
    """YAML, and options of `axolotl train`."""

    framework = Framework.AXOLOTL
    label = "axolotl"
    weighs = False

    def find(self, document: Document) -> Iterator[Keys]:
        """Deprecated values of a switch are those of two, and a plugin switches its option on."""
        for keys in super().find(document):
            if (old := _DEPRECATED.get(str(keys.get(CHECKPOINTING[1])))) is not None:
                keys.values[TO_HOST] = keys.means(CHECKPOINTING[1], old)
                keys.values[CHECKPOINTING[1]] = keys.means(CHECKPOINTING[1], True)
            if _PLUGIN in str(keys.get("plugins")) and not keys.has(_PLUGIN):
                keys.values[_PLUGIN] = keys.means("plugins", True)
            yield keys

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """A disk takes other times than the host."""
        yield from super().untaken(keys)
        if keys.get(TO_HOST) == "disk":
            yield Untaken.of(keys.values[TO_HOST], "activations on a disk, predicted on the host")


class _Settings(TrainerSettings):
    """All activations go to the host with an adapter alone."""

    own_rules: ClassVar[Rules] = {**TrainerSettings.own_rules, **stated("axolotl")}


class _Spelling(trainer.DialectSpelling):
    """FSDP2 is switched on by its section, and its version is a key at the top."""

    def finished(self, said: dict[str, Any], job: Job) -> dict[str, Any]:
        """Without the list of words, which is refused; with the names that it asks for."""
        said.pop("fsdp", None)
        if job.config.tuning.base_weights is StoredAs.NF4:
            said["adapter"] = "qlora"
        plugins = [plugin for option, plugin in _PLUGINS.items() if option in said]
        return said | ({"plugins": plugins} if plugins else {})

    def of_setting(self, setting: TorchSetting, job: Job) -> dict[str, Any]:
        """What checkpoints keep and what goes to the host are options of their own."""
        if setting == ALL_TO_HOST:
            return {CHECKPOINTING[1]: True, TO_HOST: True}
        said = super().of_setting(setting, job)
        keywords = dict(said.pop(_KWARGS, {}))
        if keywords.pop("offload", False):
            said[TO_HOST] = "hidden_states"
        if setting.policy is not None:
            said[SAVES] = True
        return said | ({_KWARGS: keywords} if keywords else {})


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    own = {name: getattr(FACTS, name) for name in ("granularities", "policies", "offloads_all")}
    own |= {"spelling": _Spelling, "settings": _Settings}
    return trainer.trainer_parts(READER, "0.21", **own)

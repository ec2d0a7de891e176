"""axolotl 0.21: what of it is no row of configs/options/axolotl.json.

Source: axolotl 0.21.0 utils/schemas/, core/builders/base.py, loaders/model.py.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from advisor.base.rule import Verdict
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface.options import CHECKPOINTING
from advisor.frameworks.huggingface.trainer_dialect import (
    DialectSpelling,
    TrainerDialectReader,
    trainer_parts,
)
from advisor.frameworks.names import Framework
from advisor.job.job import Job
from advisor.job.tuning import StoredAs
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import Document, Untaken

_OFFLOADS: Final = "activation_offloading"
_DEPRECATED: Final = {"offload": True, "offload_disk": "disk"}
"""Values of gradient_checkpointing that mean true, and those of activation_offloading."""
_KWARGS: Final = f"{CHECKPOINTING[1]}_kwargs"
_PLUGIN: Final = "cut_cross_entropy"
_PLUGINS: Final = {
    "liger_fused_linear_cross_entropy": "axolotl.integrations.liger.LigerPlugin",
    _PLUGIN: "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin",
}
"""What an option needs to be one."""


class _Reader(TrainerDialectReader):
    """YAML, and options of `axolotl train`."""

    framework = Framework.AXOLOTL
    label = "axolotl"
    unknown_key: ClassVar = "axolotl has no such key; it is ignored", Verdict.NO_EFFECT

    def find(self, document: Document) -> Iterator[Keys]:
        """Inputs of checkpoints that go to the host are an option of a checkpoint's below, and a
        plugin switches its option on."""
        for keys in super().find(document):
            if (old := _DEPRECATED.get(str(keys.get(CHECKPOINTING[1])))) is not None:
                keys.values[_OFFLOADS] = keys.means(CHECKPOINTING[1], old)
                keys.values[CHECKPOINTING[1]] = keys.means(CHECKPOINTING[1], True)
            if keys.get(_OFFLOADS) not in (None, False) and keys.truth(CHECKPOINTING[1]):
                keys.values[f"{_KWARGS}.offload"] = keys.means(_OFFLOADS, True)
            if _PLUGIN in str(keys.get("plugins")) and not keys.has(_PLUGIN):
                keys.values[_PLUGIN] = keys.means("plugins", True)
            yield keys

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """With an adapter all activations are offloaded, and none is computed again; a disk takes
        other times."""
        yield from super().untaken(keys)
        where = keys.get(_OFFLOADS)
        if where not in (None, False, "hidden_states") and (keys.get("adapter") or where == "disk"):
            note = "all activations on the host or a disk, predicted as full+offload"
            yield Untaken.of(keys.values[_OFFLOADS], note)


class _Spelling(DialectSpelling):
    """FSDP2 is switched on by its section, and its version is a key at the top."""

    def finished(self, said: dict[str, Any], job: Job) -> dict[str, Any]:
        """Without the list of words, which is refused; with the names that it asks for."""
        said.pop("fsdp", None)
        if job.config.tuning.base_weights is StoredAs.NF4:
            said["adapter"] = "qlora"
        plugins = [plugin for option, plugin in _PLUGINS.items() if option in said]
        return said | ({"plugins": plugins} if plugins else {})

    def of_setting(self, setting: Any, job: Job) -> dict[str, Any]:
        """Inputs on the host are an option of their own."""
        said = super().of_setting(setting, job)
        keywords = dict(said.pop(_KWARGS, {}))
        if keywords.pop("offload", False):
            said[_OFFLOADS] = "hidden_states"
        return said | ({_KWARGS: keywords} if keywords else {})


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return trainer_parts(READER, "0.21", spelling=_Spelling)

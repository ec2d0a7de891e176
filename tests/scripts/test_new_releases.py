"""What a release has that nothing here knows, of a folder and of a wheel."""

import zipfile
from pathlib import Path

import pytest

from scripts.new_releases import main

CONFIG = """
@dataclass
class TransformerConfig(ModelParallelConfig):
    num_layers: int = 0
    brand_new: bool = False
    counted: ClassVar[int] = 0

    def __post_init__(self):
        allowed = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "warp_drive"}
        if self.brand_new:
            raise ValueError(f"brand_new needs num_layers = {self.num_layers}, not " "zero")
        assert self.num_layers, "Number of query groups must be"
        raise ValueError(f"num_attention_heads ({1}) must be a multiple of tensor")
"""
PLACE = "megatron/core/transformer/transformer_config.py"
SAID = [
    "brand_new",
    "warp_drive",
    "brand_new needs num_layers = *, not zero",
    "Number of query groups must be",
]


def release(folder: Path, text: str) -> Path:
    file = folder / PLACE
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return folder


def names(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    main(list(words))
    return [line.rpartition("  ")[2] for line in capsys.readouterr().out.splitlines()]


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = release(tmp_path / "new", CONFIG)
    assert sorted(names(capsys, str(folder))) == sorted(SAID)
    older = release(tmp_path / "old", CONFIG.replace("brand_new: bool", "other: bool"))
    assert names(capsys, str(folder), "--after", str(older)) == ["brand_new"]


def test_a_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "new.whl", "w") as wheel:
        wheel.writestr(PLACE, CONFIG)
        wheel.writestr("megatron/core/other.py", CONFIG.replace("brand_new", "unread"))
    assert sorted(names(capsys, str(tmp_path / "new.whl"))) == sorted(SAID)


def test_no_such_release_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "none.whl")])
    assert "is no wheel and no folder" in capsys.readouterr().err

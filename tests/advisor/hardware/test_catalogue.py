"""GPU types: every number, every alias, and what a wrong file says."""

import csv
from math import isnan
from pathlib import Path

import pytest

from advisor.base.configuration import ConfigGroup, load_config
from advisor.base.dtypes import Precision
from advisor.base.units import GIB
from advisor.hardware.catalogue import Datasheet, gpu_names, load_gpu, resolve_gpu
from advisor.hardware.gpu import Vendor
from tests.advisor.refusals import refused

with Path(__file__).with_name("gpus.csv").open(encoding="utf-8") as _file:
    TABLE = {row["name"]: row for row in csv.DictReader(_file)}
"""Dense FLOP/s, memory as torch sees it, NVLink one way."""
CALIBRATED = {
    **dict.fromkeys(("A100-SXM", "A800-SXM"), "a100"),
    **dict.fromkeys(("H100-SXM", "H200", "H800", "H20", "GH200"), "h100"),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), "b200"),
}
VOLTA = ("V100-SXM-16GB", "V100-SXM-32GB")
OLDER = {**dict.fromkeys(VOLTA, 125), "T4-16GB": 65.1}
"""What has no bf16, and what it has instead."""
GEFORCE = ("RTX-3060-12GB", "RTX-3090-24GB", "RTX-4090-24GB", "RTX-5090-32GB")
NO_DATASHEET = ("A800-SXM-80GB", "GH200-96GB", "H20-SXM-96GB", *VOLTA)
"""Joined by NVLink, of which no datasheet was at hand."""
AMD = ("MI300X-192GB", "MI355X-288GB")


def test_every_type_is_in_the_table_and_memory_that_no_source_gives_is_assumed() -> None:
    assert set(gpu_names()) == set(TABLE)
    assumed = {n for n in TABLE if "memory_torch_total_gib" in load_gpu(n).assumed_fields}
    cards = {
        "A10-24GB",
        "L4-24GB",
        "A800-PCIe-80GB",
        "L20-48GB",
        "A6000-48GB",
        "RTX-3090-24GB",
        "RTX-3060-12GB",
    }
    assert assumed == cards | set(NO_DATASHEET)


@pytest.mark.parametrize("name", TABLE)
def test_numbers_in_bytes_and_flops(name: str) -> None:
    _, *numbers, _ = TABLE[name].values()
    memory, bandwidth, bf16, fp8, sms, nvlink, domain = (float(n or "nan") for n in numbers)
    gpu = load_gpu(name)
    assert gpu.name == name
    assert gpu.memory_bytes == int(memory * GIB)
    # torch sees less than the marketing number
    marketing = int(name.rsplit("-", 1)[1].removesuffix("GB"))
    assert gpu.memory_bytes < marketing * GIB
    assert gpu.memory_bandwidth_bytes_per_second == bandwidth * 10**9
    assert gpu.bf16_flops == bf16 * 10**12
    assert gpu.fp16_flops == pytest.approx(OLDER.get(name, bf16) * 10**12)
    assert gpu.fp8_flops == (None if isnan(fp8) else fp8 * 10**12)
    assert gpu.sm_count == sms
    assert (gpu.nvlink_bytes_per_second, gpu.nvlink_domain_size) == (nvlink * 10**9, domain)
    fitted = [fit for of, fit in CALIBRATED.items() if name.startswith(f"{of}-")]
    unfitted = "datasheet_amd" if name in AMD else "datasheet_pcie" if not nvlink else None
    assert [gpu.calibration] == (fitted or [unfitted])
    assert (gpu.vendor is Vendor.AMD) == (name in AMD)
    assert gpu.peer_to_peer == (name not in GEFORCE)
    assert gpu.internode_bytes_per_second >= (6.25 if name in OLDER else 25) * 10**9
    assert gpu.host_link_bytes_per_second >= (15 if name in OLDER else 31) * 10**9


@pytest.mark.parametrize("name", TABLE)
def test_every_number_has_a_source(name: str) -> None:
    values = load_config(ConfigGroup.HARDWARE, name).values
    sources = values.pop("sources")
    numbers = set(values) - {"calibration", "notes"}
    assert set(sources) == numbers
    assert all(isinstance(source, str) and source for source in sources.values())
    assert numbers <= set(Datasheet.__struct_fields__)
    gpu, network = load_gpu(name), "internode_gb_per_second"
    assert sources[network].startswith("assumed: ") == (network in gpu.assumed_fields)
    assumed = not gpu.is_joined or name in (*AMD, *NO_DATASHEET)
    assert (network in gpu.assumed_fields) == assumed


@pytest.mark.parametrize("name", AMD)
def test_xgmi_joins_each_pair_of_a_server_by_a_link_of_its_own(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.nvlink_bytes_per_second == (gpu.nvlink_domain_size - 1) * gpu.pair_bytes_per_second
    assert gpu.cuda_capability == 0
    assert not gpu.has_multicast
    assert not gpu.is_nvlink_server


def test_eight_bits_run_at_sixteen_where_there_are_none() -> None:
    assert load_gpu("A100").peak_flops(Precision.FP8_CURRENT) == 312 * 10**12
    assert load_gpu("H100").peak_flops(Precision.FP8_CURRENT) == 1979 * 10**12


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row["aliases"]])
def test_aliases(name: str) -> None:
    assert {resolve_gpu(spelt) for spelt in TABLE[name]["aliases"].split(", ")} == {name}


UNKNOWN = ["P100", "H1000", "", "nvidia", "H100-40GB", "80GB", "SXM", "../", "A10G"]


@pytest.mark.parametrize(
    ("spelt", "says"),
    [
        *((spelt, "unknown GPU type; ") for spelt in (*UNKNOWN, "RTX 4090 Laptop GPU")),
        ("H200-SXM-144GB", "did you mean H200-SXM-141GB"),
        ("H100-MIG-3g.40gb", "is a slice of a GPU (MIG), which has no preset"),
    ],
)
def test_an_unknown_type_is_one_line_with_what_is_meant(spelt: str, says: str) -> None:
    with refused(f"--gpus = {spelt or repr('')}: ", says):
        load_gpu(spelt)


OWN = """\
memory_torch_total_gib: 10.5
memory_bandwidth_gb_per_second: 100
bf16_tflops: 50
fp16_tflops: 60
sm_count: 10
compute_capability: 8.6
internode_gb_per_second: 1
host_link_gb_per_second: 8
"""


def own_type(folder: Path, text: str, name: str = "RTX-16GB") -> Path:
    (folder / "hardware").mkdir(exist_ok=True)
    (folder / "hardware" / f"{name}.yaml").write_text(text)
    return folder


def test_a_type_of_the_user_s_own(tmp_path: Path) -> None:
    gpu = load_gpu("rtx", own_type(tmp_path, OWN))
    assert (gpu.name, gpu.memory_bytes) == ("RTX-16GB", int(10.5 * GIB))
    assert gpu.peak_flops(Precision.FP16) == 60 * 10**12
    assert gpu.calibration is None
    assert resolve_gpu("h100", own_type(tmp_path, OWN, "H100")) == "H100", "before SXM's"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OWN.replace("sm_count: 10\n", ""), "sm_count = (none): is missing"),
        (OWN + "fp8_tflop: 3\n", "fp8_tflop = 3: is not a known key; did you mean fp8_tflops"),
        (OWN.replace("10.5", "ten"), "memory_torch_total_gib = ten: must be a number"),
        (OWN.replace("10.5", "0"), "memory_torch_total_gib = 0.0: must be positive"),
        (OWN + "nvlink_domain_size: 8\n", "nvlink_domain_size = 8: must be 1 without NVLink"),
        (OWN + "nvlink_gb_per_second: 300\n", "nvlink_domain_size = 1: must be 1 without NVLink"),
        (OWN + "nvlink_pair_gb_per_second: 9\n", "_pair_gb_per_second = 9.0: must be at most"),
        (OWN + "vendor: intel\n", "vendor = intel: must be"),
        (OWN + "sources: me\n", "sources = me: must map a field to its source"),
        (OWN + "sources: {sms: me}\n", "sources.sms = me: must name a field"),
        (OWN + "sources: {\n", "is not valid YAML"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with refused(says, "RTX-16GB.yaml"):
        load_gpu("RTX", own_type(tmp_path, text))

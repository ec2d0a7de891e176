"""Builds libraries with which torch for CUDA runs where no GPU is: python build.py FOLDER.

Prints the value of LD_PRELOAD. Every function that torch takes from these libraries and that has
no source here gives 0, success. Needs gcc, nm, and a Python with torch for CUDA 13.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = {
    "libcuda.so.1": "cuda_driver.c",
    "libcudart.so.13": "cuda_runtime.c",
    "libcublasLt.so.13": "cublas_lt.c",
    "libcublas.so.13": "cublas.c",
}


def called(*command: object) -> str:
    done = subprocess.run(
        [str(one) for one in command], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def names(*command: object) -> set[str]:
    """Symbols with their versions, ``cudaMalloc@libcudart.so.13``."""
    return {line.split()[-1] for line in called("nm", *command).splitlines() if line[:1] == " "}


def build(library: str, wanted: set[str], headers: list[Path], folder: Path) -> Path:
    made, source = folder / library, HERE / SOURCES[library]
    own, others = folder / f"{library}.o", folder / f"{library}.others.c"
    include = [f"-I{one}" for one in headers]
    called("gcc", "-w", "-O1", "-fPIC", *include, "-c", source, "-o", own)
    there = {line.split()[-1] for line in called("nm", "--defined-only", own).splitlines()}
    others.write_text("".join(f"long {one}(void) {{ return 0; }}\n" for one in wanted - there))
    version = folder / f"{library}.map"
    version.write_text(f"{library} {{ global: *; }};\n")
    options = ("-w", "-fPIC", "-shared", f"-Wl,-soname,{library}")
    if library != "libcuda.so.1":  # whose symbols have no version
        options += (f"-Wl,--version-script={version}",)
    called("gcc", *options, "-o", made, own, others, "-lpthread")
    return made


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch = Path(str(importlib.util.find_spec("torch").origin)).parent
    site = torch.parent
    headers = [site / "nvidia/cu13/include", site / "triton/backends/nvidia/include"]
    taken = set()
    for one in sorted(torch.glob("lib/*.so")):
        taken |= names("-D", "--undefined-only", one)
    made = []
    for library in SOURCES:
        wanted = {one.partition("@")[0] for one in taken if one.endswith(f"@{library}")}
        if library == "libcuda.so.1":
            driver = names("-D", "--undefined-only", torch / "lib/libcaffe2_nvrtc.so")
            wanted = {one for one in driver if one.startswith("cu")}
        made.append(build(library, wanted, headers, folder))
    print(":".join(map(str, made)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

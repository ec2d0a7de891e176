#!/usr/bin/env bash
# Packs Transformer Engine for a machine that has torch and an H100 or H200 but no network:
#
#   scripts/pack_transformer_engine.sh OUT
#   WORK=work scripts/pack_transformer_engine.sh OUT       goes on where a call with it ended
#
# OUT gets te.tar.xz (27 MB): a folder with Transformer Engine, compiled for one version of torch
# and Python 3.12, thinned to one kind of GPU, and env.sh to be sourced and check.py to be run
# there. Needs a network, a C++ compiler, strip, xz, 12 GB of disk, no GPU and no CUDA, and about
# 25 minutes, of which torch's download takes some and the compiler most. What is in WORK is not
# made again, but for thinning and packing, a minute or two: remove what is to be made anew.
#
#   WORK=                a temporary folder, removed when te.tar.xz is there
#     venv/              Python with torch         tools/, headers/   what the compiler needs
#     fetched/           wheels and source of Transformer Engine
#     packages/          wheels packed beside it   built/             the wheel that was compiled
#   TORCH_VERSION=2.11.0 that of the other machine, with CUDA 13 as PyPI has it
#   TE_VERSION=2.20.2
#   ARCH=90              the architecture kept: 90 for H100 and H200
#   EXTRA=               more packages that the machine lacks, as pip names them; onnx, onnxscript
#                        and einops are taken to be there: "onnx onnx_ir onnxscript ml_dtypes
#                        protobuf einops packaging" brings them, with 10 MB more
#   PYTHON312=python3.12 or pyenv's
#   VENV=WORK/venv       a virtual environment that has this torch already
#   JOBS=                compilers at a time, as many as there are cores; 2 GB of memory each
#
# Exit code: 0 done, 2 wrong use or a step that failed, in one line.
set -uo pipefail

die() { echo "$1" >&2; exit 2; }
say() { echo "== $1 at $SECONDS s"; }

# A temporary folder goes once all is done, or where nothing was made in it.
leave() {
  if [ $? = 0 ] || [ -z "$(find "$temporary" -type f -print -quit 2>/dev/null)" ]; then
    [ -z "$temporary" ] || rm -rf "$temporary"
  else
    [ -z "$temporary" ] || echo "to go on: WORK=$temporary" >&2
  fi
}

[ $# -eq 1 ] || die "usage: scripts/pack_transformer_engine.sh OUT"
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
for tool in c++ strip tar xz; do
  command -v "$tool" >/dev/null || die "$tool is missing"
done
temporary=
if [ -z "${WORK:-}" ]; then
  WORK=$(mktemp -d) && temporary=$WORK || exit 2
fi
mkdir -p "$WORK"/{fetched,packages,built} || exit 2
work=$(cd "$WORK" && pwd)
cd "$(dirname "$0")" || exit 2
trap leave EXIT

torch_version=${TORCH_VERSION:-2.11.0}
te_version=${TE_VERSION:-2.20.2}
venv=${VENV:-$work/venv}
python=$venv/bin/python
unset PYTHONPATH CUDA_HOME

# What pip says goes to WORK/steps.log. $1: what failed; the rest: pip's arguments.
pip() {
  local what=$1
  shift
  "$python" -m pip "$@" --disable-pip-version-check >>"$work/steps.log" 2>&1 \
    || die "$what failed: $(tail -n 1 "$work/steps.log") ($work/steps.log)"
}

# A folder that a step made whole has a mark beside it: one cut short is made again.
is_made() { [ -e "$work/$1.made" ]; }

# The first of these that is Python 3.12; pyenv's python3.12 may be one that is not switched on.
python312() {
  local candidate
  for candidate in ${PYTHON312:-python3.12 "$(pyenv root 2>/dev/null)"/versions/3.12*/bin/python3.12}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

make_venv() {
  if [ ! -x "$python" ]; then
    local base
    base=$(python312) || die "no Python 3.12: name one in PYTHON312"
    "$base" -m venv "$venv" || die "no virtual environment in $venv"
  fi
  if ! "$python" -c 'import torch' 2>/dev/null; then
    say "fetching torch $torch_version"
    pip "fetching torch" install "torch==$torch_version" numpy
  fi
  local has
  has=$("$python" -c 'import sys, torch; v = sys.version_info
print(f"{v[0]}.{v[1]}", torch.__version__.split("+")[0], (torch.version.cuda or "none").split(".")[0])')
  [ "$has" = "3.12 $torch_version 13" ] \
    || die "Python, torch and CUDA of $venv are $has, not 3.12 $torch_version 13"
}

# Headers of the CUDA that torch brings stand in its own packages, but for these two.
fetch_tools() {
  is_made tools || {
    rm -rf "$work/tools"
    pip "fetching tools" install --no-deps --target "$work/tools" setuptools==81.0.0 wheel==0.48.0 \
      packaging==26.3 ninja==1.13.2 pybind11==3.1.0 nvidia-cudnn-frontend==1.32.0
    touch "$work/tools.made"
  }
  is_made headers || {
    rm -rf "$work/headers"
    pip "fetching headers" install --no-deps --target "$work/headers" \
      'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'
    touch "$work/headers.made"
  }
}

fetch_engine() {
  local name
  for name in transformer_engine transformer_engine_cu13; do
    ls "$work/fetched/$name-$te_version"-*.whl >/dev/null 2>&1 \
      || pip "fetching $name" download --no-deps --only-binary=:all: -d "$work/fetched" \
        "$name==$te_version"
  done
  [ -e "$work/fetched/transformer_engine_torch-$te_version.tar.gz" ] \
    || NVTE_FRAMEWORK=pytorch PYTHONPATH=$work/tools pip "fetching the source" download --no-deps \
      --no-build-isolation --no-binary=:all: -d "$work/fetched" "transformer_engine_torch==$te_version"
}

fetch_packages() {
  is_made packages || {
    # shellcheck disable=SC2086
    pip "fetching packages" download --no-deps --only-binary=:all: -d "$work/packages" \
      pydantic==2.14.3 pydantic_core==2.50.4 annotated_types==0.8.0 typing_inspection==0.4.5 \
      typing_extensions==4.16.0 nvdlfw_inspect==0.2.2 ${EXTRA:-}
    touch "$work/packages.made"
  }
}

compiled() { ls "$work/built/transformer_engine_torch-$te_version"-*.whl 2>/dev/null; }

# In the unpacked source, so that ninja goes on where it was cut short.
compile() {
  [ -z "$(compiled)" ] || return 0
  local source=$work/source/transformer_engine_torch-$te_version nvidia include
  if [ ! -d "$source/build_tools" ]; then
    rm -rf "$work/source" && mkdir -p "$work/source"
    tar -xzf "$work/fetched/transformer_engine_torch-$te_version.tar.gz" -C "$work/source" \
      || die "no archive: $work/fetched/transformer_engine_torch-$te_version.tar.gz"
  fi
  nvidia=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
  include=$work/headers/nvidia/cu13/include
  say "compiling, 23 minutes of one core"
  (
    export NVTE_PYTORCH_FORCE_BUILD=TRUE NVTE_WITH_NCCL_EP=0 NVTE_BUILD_USE_NVIDIA_WHEELS=1
    export NVTE_FRAMEWORK=pytorch MAX_JOBS=${JOBS:-$(nproc)}
    export PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH
    export CPATH=$nvidia/cu13/include:$include:$include/cccl:$nvidia/cudnn/include
    CPATH=$CPATH:$nvidia/nccl/include:$work/tools/include
    pip compiling wheel -v --no-index --no-build-isolation --no-deps -w "$work/built" "$source"
  ) || exit 2
}

# The folder tree/ as it will lie on the other machine.
assemble() {
  local wheel start=$work/tree/transformer_engine/__init__.py
  rm -rf "$work/tree" && mkdir "$work/tree" || exit 2
  for wheel in "$work"/fetched/*"-$te_version"-*.whl "$work"/packages/*.whl "$(compiled)"; do
    "$python" -m zipfile -e "$wheel" "$work/tree" || die "no wheel: $wheel"
  done
  rm -rf "$work/tree/transformer_engine/jax"
  # Its libraries find those of torch's CUDA packages only where torch has loaded them before.
  sed -i '0,/^import transformer_engine\.common/s//import torch\n&/' "$start"
  grep -q '^import torch$' "$start" || die "transformer_engine/__init__.py is another: torch first?"
  cp transformer_engine/env.sh transformer_engine/check.py "$work/tree/" || exit 2
}

thin() {
  local library
  for library in "$work"/tree/transformer_engine/wheel_lib/*.so; do
    strip -s "$library" || die "strip failed: $library"
    "$python" thin_fatbins.py "$library" "$library" --arch "${ARCH:-90}" || exit 2
  done
}

# With env.sh, as there; a GPU and the packages of that machine are not needed for this. Lazily, as
# Transformer Engine does it: of CUDA's newer functions it uses some only where they are there.
load() {
  local libraries=$work/tree/transformer_engine/wheel_lib
  (
    PYTHON=$python
    . "$work/tree/env.sh"
    "$python" -c 'import ctypes, os, sys, torch
for library in sys.argv[1:]: ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL | os.RTLD_LAZY)' \
      "$libraries/libtransformer_engine.so" "$libraries"/transformer_engine_torch.*.so
  ) 2>>"$work/steps.log" \
    || die "what was made cannot be loaded: $(tail -n 1 "$work/steps.log") ($work/steps.log)"
}

pack() {
  tar -C "$work/tree" --owner=0 --group=0 --sort=name -cf - . | xz -6 >"$out/.te.tar.xz" \
    && mv "$out/.te.tar.xz" "$out/te.tar.xz" || die "packing into $out failed"
}

make_venv
say "fetching Transformer Engine $te_version"
fetch_tools
fetch_engine
fetch_packages
compile
say "thinning"
assemble
thin
load
say "packing"
pack
say "$(stat -c %s "$out/te.tar.xz") bytes in $out/te.tar.xz"

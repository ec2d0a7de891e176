# To be sourced by bash:  . te/env.sh    in a shell of its own: it changes what is imported there.
#
# Transformer Engine of this folder, with the CUDA libraries of the torch of PYTHON (python3). The
# three HOMEs matter: without them it loads the system's cuDNN, which may be too old for fused
# attention, and takes the slower unfused one without a word.
_te_root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
_te_nvidia=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
export PYTHONPATH=$_te_root${PYTHONPATH:+:$PYTHONPATH} NVTE_FRAMEWORK=pytorch
_te_libraries=$_te_nvidia/cu13/lib:$_te_nvidia/cudnn/lib:$_te_nvidia/nccl/lib
export LD_LIBRARY_PATH=$_te_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CUDNN_HOME=$_te_nvidia/cudnn NVRTC_HOME=$_te_nvidia/cu13 CURAND_HOME=$_te_nvidia/cu13
if [ -f "$_te_nvidia/cu13/include/cuda_fp8.h" ]; then
  export NVTE_CUDA_INCLUDE_DIR=${NVTE_CUDA_INCLUDE_DIR:-$_te_nvidia/cu13}
fi
unset _te_root _te_nvidia _te_libraries

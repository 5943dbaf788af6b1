#!/usr/bin/env bash
# Makes the environment that the peers of the CPU table are measured in: bench/peers.sh [FOLDER], default .bench-venv.
# llama-cpp-python is built from source, which takes about ten minutes on two cores; once made, the environment is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../.bench-venv}
stamp=$folder/.stamp-$(sha256sum "$here/peers.txt" | cut -c1-12)
[ ! -e "$stamp" ] || exit 0
echo "making the environment of the peers in $folder: the first time takes a while"
"${PYTHON:-python3}" -m venv "$folder"
# gcc removes what llama.cpp writes into the configuration of AMX's tiles, so that its first prompt ends the process:
# gcc believes that ldtilecfg reads eight bytes of it. Without these passes the stores stay; a build kept by pip may lack them.
if grep -qw amx_tile /proc/cpuinfo 2>/dev/null; then
  export PIP_NO_CACHE_DIR=1 CMAKE_ARGS="${CMAKE_ARGS-} -DCMAKE_CXX_FLAGS='-fno-tree-dse -fno-dse'"
fi
# PyTorch has builds without CUDA, a tenth of the size, in an index of its own: PIP_EXTRA_INDEX_URL names it to pip.
"$folder/bin/python" -m pip --quiet --disable-pip-version-check install -r "$here/peers.txt"
"$folder/bin/python" -c 'import llama_cpp, onnx, onnxruntime, torch, transformers, matplotlib'
touch "$stamp"

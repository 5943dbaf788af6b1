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
# PyTorch's own index has builds without CUDA, which are a tenth of the size.
index=https://download.pytorch.org/whl/cpu/
options=()
if "$folder/bin/python" -c "import urllib.request as u; u.urlopen('$index', timeout=10)" 2>/dev/null; then
  options=(--extra-index-url "$index")
fi
"$folder/bin/python" -m pip --quiet --disable-pip-version-check install "${options[@]}" -r "$here/peers.txt"
"$folder/bin/python" -c 'import llama_cpp, onnx, onnxruntime, torch, transformers, matplotlib'
touch "$stamp"

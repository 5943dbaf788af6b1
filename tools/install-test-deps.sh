#!/usr/bin/env bash
# Installs what some tests need beside Python, where that is possible without asking: the software Vulkan driver that the
# WebGPU and Vulkan tests run on, the validator of SPIR-V, the browser that opens pages, and Node, which builds what runs there. Otherwise says what to install and
# succeeds: the other tests still run. With the argument `emulator` also what slow tests run code of 64-bit Arm with.
set -euo pipefail

have_loader() {
  # ldconfig lives in /sbin, which is not on every user's PATH. Read to its end: a pipe that is closed early would count as failed.
  PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null
}

have_driver() {
  # Any driver serves, hardware or software; lavapipe is only the one that is always to be had.
  [[ -n "${VK_ICD_FILENAMES:-}${VK_DRIVER_FILES:-}" ]] || compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null ||
    compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null
}

have_browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then return 0; fi
  done
  return 1
}

have_node() {
  command -v node >/dev/null && command -v npm >/dev/null
}

have_emulator() {
  command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null
}

as_root=()
if [[ "$(id -u)" != 0 ]]; then
  as_root=(sudo -n)
fi

# require NEED PACKAGE…: installs the packages, or says why not and what they are for.
require() {
  local need=$1 why=
  shift
  if ! command -v apt-get >/dev/null; then
    why="this system has no apt-get"
  elif [[ ${#as_root[@]} -gt 0 ]] && ! sudo -n true 2>/dev/null; then
    why="system packages cannot be installed without a password"
  else
    echo "installing $*"
    # A stale package list is refreshed only when needed: where the packages are cached, no network is used.
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
    if ! "${install[@]}" >/dev/null 2>&1; then
      "${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || true
      "${install[@]}" >/dev/null || why="apt-get could not install them"
    fi
  fi
  if [[ -n "$why" ]]; then
    echo "note: $why; $need. On Debian or Ubuntu:" >&2
    echo "    sudo apt-get install -y $*" >&2
  fi
}

if [[ "$(uname -s)" != Linux ]]; then
  exit 0
fi
if ! { have_loader && have_driver; }; then
  require "the WebGPU tests need a Vulkan driver, a software one will do" libvulkan1 mesa-vulkan-drivers
fi
if ! command -v spirv-val >/dev/null; then
  require "the tests in tests/vulkan check SPIR-V with spirv-val" spirv-tools
fi
if ! have_browser; then
  require "the tests in tests/browser need Chromium" chromium fonts-dejavu-core
fi
if ! have_node; then
  require "the tests in tests/web and tests/browser build the browser files with Node" nodejs npm
fi
if [[ "${1:-}" == emulator && "$(uname -m)" == x86_64 ]] && ! have_emulator; then
  require "slow tests in tests/host run kernels of aarch64" qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
fi

#!/usr/bin/env bash
# Installs the software Vulkan driver that the WebGPU tests run on, where that is possible without asking;
# otherwise says what to install and succeeds, so that the tests which need no driver still run.
set -euo pipefail

packages=(libvulkan1 mesa-vulkan-drivers)

have_loader() {
  # ldconfig lives in /sbin, which is not on every user's PATH.
  PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1'
}

have_driver() {
  # Any driver serves, hardware or software; lavapipe is only the one that is always to be had.
  [[ -n "${VK_ICD_FILENAMES:-}${VK_DRIVER_FILES:-}" ]] || compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null ||
    compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null
}

if [[ "$(uname -s)" != Linux ]] || { have_loader && have_driver; }; then
  exit 0
fi

as_root=()
if [[ "$(id -u)" != 0 ]]; then
  as_root=(sudo -n)
fi

explain() {
  echo "note: $1; the WebGPU tests need a Vulkan driver. To install the software one (Debian, Ubuntu):" >&2
  echo "    sudo apt-get install -y ${packages[*]}" >&2
  exit 0
}

command -v apt-get >/dev/null || explain "this system has no apt-get"
if [[ ${#as_root[@]} -gt 0 ]] && ! sudo -n true 2>/dev/null; then
  explain "system packages cannot be installed without a password"
fi

echo "installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
# A stale package list is refreshed only when needed: where the packages are cached, no network is used.
install=("${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}")
if ! "${install[@]}" >/dev/null 2>&1; then
  "${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || true
  "${install[@]}" >/dev/null || explain "apt-get could not install them"
fi

"""Signed kernel packs: kernels in WASM and WGSL from other people, checked before anything of them is compiled."""

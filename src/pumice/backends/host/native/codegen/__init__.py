"""Vectors and generated LLVM code, of which kernels are made."""

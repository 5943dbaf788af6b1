"""Gaussian splatting: files, cameras, rendering, and fitting splats to images; everything runs on the device."""

from pumice.splat.fitting import Fit, FitStep, fit, psnr, start_splats
from pumice.splat.projection import Layers, Projected, project, rasterize, spherical_harmonics
from pumice.splat.rendering import Image, Renderer, render
from pumice.splat.scene import Camera, Splats, turntable
from pumice.splat.scene_files import read, write

__all__ = [
    "Camera",
    "Fit",
    "FitStep",
    "Image",
    "Layers",
    "Projected",
    "Renderer",
    "Splats",
    "fit",
    "project",
    "psnr",
    "rasterize",
    "read",
    "render",
    "spherical_harmonics",
    "start_splats",
    "turntable",
    "write",
]

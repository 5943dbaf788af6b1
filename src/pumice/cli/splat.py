"""`pumice splat`: renders files of Gaussian splats, fits splats to pictures, shows them in a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pumice.cli.options import Device
from pumice.cli.pack import Json

splat_app = typer.Typer(
    name="splat",
    help="Gaussian splats: render files to pictures, fit splats to pictures, look at them in a page.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SplatFile = Annotated[Path, typer.Argument(metavar="FILE", help="A .ply file of 3D Gaussian splatting, or a .splat file.")]
Up = Annotated[str, typer.Option(metavar="X,Y,Z", help="The direction that is up in the picture.")]
Background = Annotated[str, typer.Option(metavar="R,G,B", help="The colour between the splats, from 0 to 1.")]
Width = Annotated[int, typer.Option(min=1, max=8192, help="Pixels across.")]
Height = Annotated[int, typer.Option(min=1, max=8192, help="Pixels down.")]
FieldOfView = Annotated[float, typer.Option("--fov", min=1.0, max=170.0, help="Degrees from the top to the bottom.")]


@splat_app.command("render")
def render_file(
    file: SplatFile,
    out: Annotated[Path, typer.Option("--out", metavar="PNG", help="The picture to write.")],
    turntable: Annotated[
        int | None,
        typer.Option(min=1, max=3600, metavar="N", help="N pictures all around, numbered: out-000.png, …", show_default="one"),
    ] = None,
    width: Width = 640,
    height: Height = 480,
    fov: FieldOfView = 50.0,
    eye: Annotated[
        str | None, typer.Option(metavar="X,Y,Z", help="Where the camera is.", show_default="as far as shows the scene")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="X,Y,Z", help="What it looks at.", show_default="the middle of the scene")
    ] = None,
    distance: Annotated[float, typer.Option(min=0.01, help="Distance from the middle, in radii of the scene.")] = 2.5,
    up: Up = "0,-1,0",
    background: Background = "0,0,0",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Render a file of splats to a PNG, or to a turntable of them."""
    from pumice.cli.splat_run import render

    view = {"eye": eye, "target": target, "distance": distance, "up": up}
    image = {"width": width, "height": height, "field_of_view": fov}
    raise typer.Exit(render(file, out, turntable, view, image, background=background, device=device, as_json=json))


@splat_app.command("fit")
def fit_pictures(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A folder with transforms.json and its PNG pictures, or that file."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the splats go: .ply or .splat.")],
    splats: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many, at random places at first.")] = 5000,
    start: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Splats to start from, in place of random ones.", show_default="none")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Train steps, each with one picture.")] = 2000,
    band: Annotated[int, typer.Option(min=0, max=3, help="How finely colours follow the direction of sight.")] = 1,
    lr: Annotated[float, typer.Option(min=0.0, help="A factor of all learning rates.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the first places and of the order of the pictures.")] = 0,
    background: Background = "0,0,0",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Fit splats to pictures from known cameras; says the PSNR of every picture."""
    from pumice.cli.splat_run import fit

    first = {"splats": splats, "start": start, "band": band}
    settings = {"steps": steps, "lr": lr, "seed": seed, "device": device}
    raise typer.Exit(fit(data, out, first, settings, background=background, as_json=json))


@splat_app.command("view")
def view_file(
    file: SplatFile,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 is any free one.", show_default="8417 or one of the next")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    width: Width = 800,
    height: Height = 600,
    fov: FieldOfView = 50.0,
    up: Up = "0,-1,0",
    background: Background = "0,0,0",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Look at splats in a page, until Ctrl-C: drag to turn, scroll to come nearer. This device renders, the page shows."""
    from pumice.cli.splat_view import view

    image = {"width": width, "height": height, "field_of_view": fov}
    serving = {"host": host, "port": port, "open_page": open_page}
    raise typer.Exit(view(file, image, serving, up=up, background=background, device=device, as_json=json))

"""`pumice quantize`: a model's weights in another format, as a GGUF file, with the errors of each tensor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pumice.cli.pull import progress_bar
from pumice.llm.quantize import QuantizeReport, TensorReport, quantize_model
from pumice.sources.files import size_text

_HEAD = f"{'tensor':<28} {'shape':>14}  {'from':<5} {'to':<6} {'bits':>6} {'rmse':>10} {'relative':>9} {'max error':>10}"


def run(model: str, *, to: str, out: Path, pure: bool, force: bool, threads: int | None, verbose: bool, as_json: bool) -> int:
    """Quantise, and print what it cost, with `verbose` tensor by tensor; the exit code."""
    printed = _TensorTable()
    with progress_bar(quiet=as_json) as progress:
        # Lines between the redraws of a bar would tear it: with one they come at the end, else as they are known.
        live = verbose and not as_json and not sys.stderr.isatty()
        report = quantize_model(
            model,
            to=to,
            out=out,
            pure=pure,
            overwrite=force,
            threads=threads,
            progress=progress,
            on_tensor=printed.add if live else None,
        )
    if as_json:
        print(json.dumps(report.as_json()))
        return 0
    if verbose and not live:
        for tensor in report.tensors:
            printed.add(tensor)
    print(total_line(report))
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


class _TensorTable:
    """Rows on stdout, below a head that comes with the first."""

    _empty = True

    def add(self, tensor: TensorReport) -> None:
        if self._empty:
            self._empty = False
            print(_HEAD)
        print(tensor_line(tensor), flush=True)


def tensor_line(t: TensorReport) -> str:
    """One tensor's row of the table; tensors that stay as they are have no errors.

    >>> made = TensorReport("output.weight", (8, 64), "f16", "q8_0", 1024, 544, rms=1.0, rmse=0.004, max_error=0.01)
    >>> tensor_line(made)
    'output.weight                          8×64  f16   q8_0     8.50      0.004     0.40%       0.01'
    """
    shape = "×".join(str(n) for n in t.shape)
    start = f"{t.name:<28} {shape:>14}  {t.source:<5} {t.dtype:<6} {t.bits:>6.2f}"
    line = f"{start} {t.rmse:>10.3g} {t.relative_rmse:>9.2%} {t.max_error:>10.3g}" if t.rmse else start
    return f"{line}  ({t.note})" if t.note else line


def total_line(report: QuantizeReport) -> str:
    """The last line: sizes, bits and the error over all weights."""
    return (
        f"{report.out}: {size_text(report.source_bytes)} → {size_text(report.bytes)}, {len(report.tensors)} tensors, "
        f"{report.bits:.2f} bits per weight, relative error {report.relative_rmse:.2%}, {report.seconds:.1f} s"
    )

"""The packages that only packs and signatures need, and the error for each that is not installed."""

from __future__ import annotations

from pumice.errors import PumiceError


class MissingExtra(PumiceError):
    """A package of the extra `packs` that is not installed; `package` names it."""

    code = "missing-extra"


def missing_extra(package: str) -> MissingExtra:
    """The error to raise where importing a package of the extra failed.

    >>> print(missing_extra("wasmtime"))
    [missing-extra] kernel packs and signed receipts need the package wasmtime
      hint: pip install 'pumice[packs]'
    """
    message = f"kernel packs and signed receipts need the package {package}"
    return MissingExtra(message, hint="pip install 'pumice[packs]'", package=package)

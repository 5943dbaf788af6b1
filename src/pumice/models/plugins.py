"""Architectures of other packages, which announce them as entry points of the group `pumice.models`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pumice.core.records import dataclass
from pumice.errors import PluginError, PumiceWarning
from pumice.models.arch import Architecture, CausalArchitecture, EncoderArchitecture

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pumice.models"
_found: dict[str, Architecture] = {}


@dataclass(frozen=True, slots=True)
class Plugin:
    """An architecture that an installed package announces: its `model_type`, the package, and where its object is."""

    name: str
    package: str
    entry: EntryPoint


def installed_plugins() -> tuple[Plugin, ...]:
    """What the installed packages announce; none of it is imported. Metadata that cannot be read gives a warning.

    >>> [p.name for p in installed_plugins() if p.package.startswith("pumice ")]
    []
    """
    from importlib.metadata import distributions  # with the parsers of e-mail; built-in architectures do without

    found: dict[str, list[Plugin]] = {}
    for dist in distributions():
        try:
            entries = [e for e in dist.entry_points if e.group == GROUP]
            # Of a package that is on the path twice, the first counts, as it does for imports.
            if entries and dist.name not in found:
                found[dist.name] = [Plugin(e.name, f"{dist.name} {dist.version}", e) for e in entries]
        except Exception as e:  # one damaged package must not hide the others
            where = getattr(dist, "_path", "an installed package")
            message = f"the metadata of {where} cannot be read, so no architecture of it is found: {e!r:.200}"
            warnings.warn(message, PumiceWarning, stacklevel=2)
    return tuple(plugin for plugins in found.values() for plugin in plugins)


def find_plugin(name: str) -> Architecture | None:
    """The architecture that an installed package announces under a name, None if none does; only that package is imported."""
    if name in _found:
        return _found[name]
    named = [p for p in installed_plugins() if p.name == name]
    if not named:
        return None
    if len(named) > 1:
        packages = " and ".join(p.package for p in named)
        raise PluginError(f"{packages} both announce the architecture {name!r:.60}", hint="uninstall one of them", name=name)
    [plugin] = named
    whose = f"the architecture {name!r:.60} of the plug-in {plugin.package} ({plugin.entry.value})"
    try:
        found = plugin.entry.load()
    except (Exception, SystemExit) as e:
        raise PluginError(
            f"{whose} cannot be imported: {type(e).__name__}: {e!s:.300}",
            hint="update the plug-in, or uninstall it",
            name=name,
            package=plugin.package,
        ) from e
    if not isinstance(found, CausalArchitecture | EncoderArchitecture):
        raise PluginError(
            f"{whose} is of type {type(found).__name__}",
            hint="the entry point must name a CausalArchitecture or an EncoderArchitecture",
            name=name,
            package=plugin.package,
        )
    _found[name] = found
    return found

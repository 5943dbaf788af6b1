"""A plan, made or loaded, becomes an Executable on a device."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pumice import config
from pumice.backends.base import Device
from pumice.backends.select import as_device
from pumice.errors import InputError
from pumice.ir.pack_kernels import PackKernel
from pumice.plan.plan import Plan, PlanOptions
from pumice.run.executable import Executable
from pumice.run.packs import GivenPacks
from pumice.run.store import Store


def plan_options(
    fuse: bool | None = None,
    arena: bool | None = None,
    pack_kernels: tuple[PackKernel, ...] = (),
    largest_step: int | None = None,
) -> PlanOptions:
    """Plan options as given, else from the switches; planning itself reads no switches.

    >>> with config.override(nofuse=True):
    ...     plan_options().fuse, plan_options(fuse=True).fuse
    (False, True)
    """
    return PlanOptions(
        fuse=not config.nofuse if fuse is None else fuse,
        arena=not config.noarena if arena is None else arena,
        default_max=config.default_max,
        check=config.validate,
        pack_kernels=pack_kernels,
        largest_step=largest_step,
    )


def store_for(device: str | Device, store: Store | None, packs: GivenPacks = None) -> tuple[Store, Device]:
    """The store to open a plan on, for one executable alone if none is given, and the device to plan for.

    >>> store, device = store_for("host", None)
    >>> store_for("auto", store) == (store, device)
    True
    """
    if store is None:
        store = Store.temporary(device, packs=packs)
        return store, store.device
    if not isinstance(store, Store):
        raise InputError(
            f"store is a pm.Store, not {type(store).__name__}", hint="make one with pm.Store(device), or use exe.store"
        )
    if packs is not None:
        raise InputError("packs go with the store", hint="pm.Store(device, packs=...)")
    if device == "auto":
        return store, store.device
    device = as_device(device)
    if not device.joins(store.device):
        raise InputError(
            f"the store is on {store.device.name}, which is not {device.name} as it is now",
            hint="leave the device out, or use a store on it; reopen() a store whose device was lost",
        )
    return store, device


def open_plan(
    plan: Plan,
    store: Store,
    *,
    check_indices: bool,
    skip_unchanged: bool | None,
    took: Mapping[str, float] | None = None,
) -> Executable:
    """The plan on the device of the store; PUMICE_DEBUG prints it, and how long this and what came before (`took`) took."""
    began = time.perf_counter()
    exe = Executable(
        plan,
        store,
        check_indices=check_indices,
        skip_unchanged=skip_unchanged,
        validate=config.validate,
    )
    if config.debug:
        from pumice.run.debug import explain_compile

        explain_compile(config.debug, plan.graph, plan, store.device, {**(took or {}), "opened in": time.perf_counter() - began})
    return exe

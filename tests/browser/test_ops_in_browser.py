"""Every op of the registry in the browser, over its own samples, under the oracle of all backends."""

from __future__ import annotations

import pytest

from browser.agreement import disagreements, planned
from browser.lab import Lab
from pumice.ir.registry import OpSpec, all_ops

from harness import one_op

by_name = pytest.mark.parametrize("spec", all_ops(), ids=lambda s: s.name)


@by_name
def test_op_agrees_with_the_reference(lab: Lab, spec: OpSpec) -> None:
    assert disagreements(lab, (planned(s.label, one_op(spec, s)) for s in spec.samples())) == []

"""Receipts whose every text tries to become markup, a script, a style, or something else than it is."""

from __future__ import annotations

from pumice.receipts.artifacts import Artifact
from pumice.receipts.receipt import HOST_REASON, Receipt, make_receipt
from pumice.routes.backend import backend_identity
from pumice.routes.staged import stage, staged_profile

ATTACKS = (
    "</title></style></script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg onload='document.title=1'>",
    "<!--<b>-->&lt;i&gt;<a href=javascript:alert(1)>",
    "gpj.\u202etxt\x00\x1b[2J\u2028",
    "]]><style>*{display:none}</style><meta http-equiv=refresh content=0;url=http://example.com>",
)


def hostile_receipt(attack: str) -> Receipt:
    """A valid receipt with the attack wherever its maker chooses a text."""
    facts = {attack: attack, "deep": {attack: [attack, {attack: attack}]}, "list": [attack, [attack]]}
    return make_receipt(
        task=attack,
        route_id=attack,
        inputs=[Artifact.text(f"in {attack}", attack), Artifact.json("json", {attack: attack})],
        outputs=[Artifact.text(f"out {attack}", attack * 3)],
        backend=backend_identity(attack, features=[attack], limits={"maxBufferSize": 1}),
        model={"name": attack, "dtype": attack, "source": attack, "files": [{"name": attack, "bytes": 1, "sha256": "ab" * 32}]},
        profile=staged_profile([stage(attack, 1.5, metadata={attack: attack}), stage("decode", 3)]),
        request=facts,
        plans=[{"name": attack, "digest": "cd" * 32}],
        device={"name": attack, **facts},
        caps=facts,
        software=facts,
        packs=[facts],
        degraded=[facts],
        insecure=True,
        conditions=facts,
        fallback_reason=f"{HOST_REASON} {attack}",
    )

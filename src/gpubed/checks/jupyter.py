"""Checks that JupyterLab answers over TLS to the right token, and to no other."""

from __future__ import annotations

import http
from collections.abc import Iterator

from gpubed.access import services
from gpubed.checks.context import Context
from gpubed.checks.stages import Stage, at
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

# Waits while the process has started and does not listen yet, as after a boot, but not for one that
# fails again and again.
_AWAIT = (
    "timeout 60 sh -c 'while systemctl show --property=SubState jupyterlab.service"
    " | grep -q =start; do sleep 0.5; done'"
)
_OK, _FORBIDDEN = http.HTTPStatus.OK, http.HTTPStatus.FORBIDDEN


@at(Stage.SERVICES, "jupyterlab.tls", "jupyterlab.wrong_token")
def jupyterlab(context: Context) -> Iterator[Check]:
    """Ask with the right token and with a wrong one."""
    if context.plan.spec.services.jupyterlab is None:
        yield Check(id="jupyterlab.tls", result="skip", reason="the cluster has no JupyterLab")
        return
    right = secret.text(context.cluster.paths.jupyterlab_token)
    context.head.run(_AWAIT, check=False)
    yield _ask(context, "jupyterlab.tls", right, _OK)
    yield _ask(context, "jupyterlab.wrong_token", "0" * len(right), _FORBIDDEN)


def _ask(context: Context, id_: str, token: str, wanted: int) -> Check:
    head = context.allocation.head.name
    try:
        status = services.jupyterlab_status(context.cluster, token)
    except GpubedError as error:
        return Check(id=id_, node=head, result="fail", limit=str(wanted), reason=error.message)
    result = "pass" if status == wanted else "fail"
    reason = "" if status == wanted else f"answered {status} instead of {wanted}"
    return Check(
        id=id_, node=head, result=result, value=status, limit=str(int(wanted)), reason=reason
    )

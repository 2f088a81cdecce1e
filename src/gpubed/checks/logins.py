"""Checks that the head's services answer over TLS to the right login, and refuse a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from gpubed.access import services, serving, tracking
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

_WRONG = "0" * 32
# By check: how the service is asked, with which login (the right one if empty), and its answer.
_ASKED = {
    "jupyterlab.tls": (services.jupyterlab_status, "", HTTPStatus.OK),
    "jupyterlab.wrong_token": (services.jupyterlab_status, _WRONG, HTTPStatus.FORBIDDEN),
    "hub.tls": (services.hub_status, "", HTTPStatus.OK),
    "hub.stranger": (services.hub_status, _WRONG, HTTPStatus.FORBIDDEN),
    "tracking.tls": (tracking.status, "", HTTPStatus.OK),
    "tracking.wrong_password": (tracking.status, _WRONG, HTTPStatus.UNAUTHORIZED),
    "serving.tls": (serving.status, "", HTTPStatus.OK),
    "serving.wrong_token": (serving.status, _WRONG, HTTPStatus.UNAUTHORIZED),
}
# Waits while JupyterLab starts and does not listen yet, as after a boot, but not if it fails again
# and again.
_AWAIT = (
    "timeout 60 sh -c 'while systemctl show --property=SubState jupyterlab.service"
    " | grep -q =start; do sleep 0.5; done'"
)


@at(Stage.SERVICES, *_ASKED)
def logins(context: Context) -> Iterator[Check]:
    """Call each service of the head with the right login and with a wrong one."""
    declared = context.plan.spec.services
    if declared.jupyterlab:
        context.head.run(_AWAIT, check=False)
    for id_, (ask, login, right) in _ASKED.items():
        service = id_.partition(".")[0]
        if getattr(declared, service) is None:
            yield from skipped((id_,), f"cluster.yml has no {service}")
            continue
        status, reason = None, ""
        try:
            status = ask(context.cluster, login)
            reason = "" if status == right else f"answers {status} instead of {right}"
        except GpubedError as error:
            reason = error.message
        yield judged(id_, context.allocation.head.name, reason, status, str(int(right)))

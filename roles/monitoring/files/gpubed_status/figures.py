"""Turns answers of Prometheus into the figures of the status page; has no side effects."""

from __future__ import annotations

from typing import Any

Answers = dict[str, list[dict[str, Any]]]

_LINK = " and on (node, device) gpubed_link_declared_bits_per_second"
_ERRORS = (
    "increase(node_network_receive_errs_total[1d]) + increase(node_network_transmit_errs_total[1d])"
)
_RECEIVED, _SENT = (
    f"rate(node_network_{way}_bytes_total[2m]) * 8{_LINK}"
    f" or rate(node_infiniband_port_data_{ib}_bytes_total[2m]) * 8"
    for way, ib in (("receive", "received"), ("transmit", "transmitted"))
)
# Values of a container first: the exporter's are those of the whole machine.
_CPU = (
    "rate(gpubed_container_cpu_seconds_total[2m]) / gpubed_container_cpus"
    ' or on (node) 1 - avg by (node) (rate(node_cpu_seconds_total{mode="idle"}[2m]))'
)
_MEMORY = "gpubed_container_memory_limit_bytes"

QUERIES = {
    "up": 'up{job="node"}',
    "uptime": "node_time_seconds - on (node) gpubed_container_start_timestamp_seconds"
    " or on (node) node_time_seconds - node_boot_time_seconds",
    "cpu": _CPU,
    "memory": f"gpubed_container_memory_used_bytes / {_MEMORY}"
    " or on (node) 1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
    "memory_total": f"{_MEMORY} or on (node) node_memory_MemTotal_bytes",
    "disk": '1 - node_filesystem_avail_bytes{mountpoint="/"} / node_filesystem_size_bytes',
    "disk_total": 'node_filesystem_size_bytes{mountpoint="/"}',
    "gpus_declared": "gpubed_gpus_declared",
    "gpu_info": "gpubed_gpu_info",
    "gpu_utilization": "gpubed_gpu_utilization_ratio",
    "gpu_memory_used": "gpubed_gpu_memory_used_bytes",
    "gpu_memory_total": "gpubed_gpu_memory_total_bytes",
    "gpu_temperature": "gpubed_gpu_temperature_celsius",
    "gpu_power": "gpubed_gpu_power_watts",
    "gpu_ecc": "gpubed_gpu_ecc_uncorrected_errors",
    "gpu_throttled": "max by (node, gpu) (gpubed_gpu_throttled)",
    "link_carrier": f"node_network_carrier{_LINK} or node_infiniband_state_id == bool 4",
    "link_declared": "gpubed_link_declared_bits_per_second",
    "link_speed": f"(node_network_speed_bytes > 0) * 8{_LINK}"
    " or node_infiniband_rate_bytes_per_second * 8",
    "link_received": _RECEIVED,
    "link_sent": _SENT,
    "link_errors": f"{_ERRORS}{_LINK} or increase(node_infiniband_port_errors_received_total[1d])",
    # A flap is a carrier that was lost and came back.
    "link_flaps": f"increase(node_network_carrier_changes_total[1d]) / 2{_LINK}"
    " or increase(node_infiniband_link_downed_total[1d])",
    "lease_end": "gpubed_lease_end_timestamp_seconds",
    "verified_at": "gpubed_verification_timestamp_seconds",
    "verified": "gpubed_verification_checks",
    "idle": "min(gpubed_use_idle_seconds)",
    "use": "sum by (user, job, of) (gpubed_use_seconds)",
}
HISTORIES = {
    "cpu": _CPU,
    "gpu_utilization": "gpubed_gpu_utilization_ratio",
    "link_received": _RECEIVED,
    "link_sent": _SENT,
}
_GRAVE_FIRST = ("critical", "warning")


def view(
    answers: Answers,
    histories: Answers,
    alerts: list[dict[str, Any]],
    roles: dict[str, str],
    now: float,
) -> dict[str, Any]:
    """Return alerts, nodes, GPUs, links, verification, use and lease.

    Args:
        answers: What each of `QUERIES` gave.
        histories: What each of `HISTORIES` gave.
        alerts: Prometheus' alerts.
        roles: Role of each node, by name, in the order of the cluster.
        now: Seconds since 1970.
    """
    return {
        "alerts": _alerts(alerts),
        "nodes": _nodes(answers, histories, roles),
        "gpus": _devices(answers, histories, "gpu", "info", ("node", "gpu"), roles),
        "gpus_declared": sum(_by(answers["gpus_declared"], "node").values()),
        "links": _devices(answers, histories, "link", "carrier", ("node", "device"), roles),
        "verification": _verification(answers, now),
        "idle_s": next(iter(_values(answers["idle"])), None),
        "use": _use(answers["use"]),
        "lease_s": next((end - now for end in _values(answers["lease_end"])), None),
    }


def _alerts(alerts: list[dict[str, Any]]) -> list[dict[str, str]]:
    found = [
        {
            "name": alert["labels"]["alertname"],
            "severity": alert["labels"].get("severity", "warning"),
            "state": alert["state"],
            "since": alert["activeAt"][:16].replace("T", " "),
            **alert["annotations"],
        }
        for alert in alerts
    ]
    return sorted(found, key=_gravity)


def _gravity(alert: dict[str, str]) -> tuple[bool, bool, str]:
    return alert["state"] != "firing", alert["severity"] != _GRAVE_FIRST[0], alert["summary"]


def _nodes(answers: Answers, histories: Answers, roles: dict[str, str]) -> list[dict[str, Any]]:
    figures = ("up", "uptime", "cpu", "memory", "memory_total", "disk", "disk_total")
    found = {name: _by(answers[name], "node") for name in figures}
    history = _history(histories["cpu"], "node")
    return [
        {"name": node, "role": role, "history": history.get(node, [])}
        | {name: values.get(node) for name, values in found.items()}
        for node, role in roles.items()
    ]


def _devices(
    answers: Answers,
    histories: Answers,
    kind: str,
    list_of: str,
    labels: tuple[str, str],
    roles: dict[str, str],
) -> list[dict[str, Any]]:
    """Return a row per GPU or link with all its figures."""
    names = [name for name in QUERIES if name.startswith(f"{kind}_")]
    found = {name.removeprefix(f"{kind}_"): _by(answers[name], *labels) for name in names}
    history = {
        name.removeprefix(f"{kind}_"): _history(histories[name], *labels)
        for name in HISTORIES
        if name.startswith(f"{kind}_")
    }
    rows = [
        {"labels": sample["metric"], "history": {n: h.get(key, []) for n, h in history.items()}}
        | {name: values.get(key) for name, values in found.items()}
        for sample in answers[f"{kind}_{list_of}"]
        for key in [_key(sample, *labels)]
    ]
    order = list(roles)
    return sorted(
        (row for row in rows if row["labels"]["node"] in roles),
        key=lambda row: (order.index(row["labels"]["node"]), row["labels"][labels[1]]),
    )


def _verification(answers: Answers, now: float) -> dict[str, float] | None:
    at = next(iter(_values(answers["verified_at"])), None)
    if at is None:
        return None
    return {"age_s": now - at, **_by(answers["verified"], "result")}


def _use(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the use by user of the last 24 hours, in seconds, sorted by GPU time."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (user, job, of), seconds in _by(samples, "user", "job", "of").items():
        row = rows.setdefault(
            (user, job), {"user": user, "job": job, "cpu": 0, "gpu": 0, "held": 0}
        )
        row[of] = seconds
    return sorted(rows.values(), key=lambda row: (-row["held"], -row["cpu"]))


def _key(sample: dict[str, Any], *labels: str) -> Any:
    found = tuple(sample["metric"].get(label, "") for label in labels)
    return found if len(found) > 1 else found[0]


def _by(samples: list[dict[str, Any]], *labels: str) -> dict[Any, float]:
    return {_key(sample, *labels): float(sample["value"][1]) for sample in samples}


def _history(series: list[dict[str, Any]], *labels: str) -> dict[Any, list[float]]:
    return {_key(one, *labels): [float(value) for _, value in one["values"]] for one in series}


def _values(samples: list[dict[str, Any]]) -> list[float]:
    return [float(sample["value"][1]) for sample in samples]

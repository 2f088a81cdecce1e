"""What the server accepts as a job: written apart from gpubed's own schema, after the facts.

Checked against the public client in the tests, so that the two do not share a misreading.
"""

import re

POSITIVE, NATURAL = (lambda v: _int(v) and v > 0), (lambda v: _int(v) and v >= 0)
DURATION = re.compile(
    r"\d+(\.\d+)? ?(h|hours?|m|min|minutes?|s|sec|seconds?|days?|weeks?)", re.IGNORECASE
)
IMAGE = re.compile(
    r"([^:@/\s]+:[^@/\s]+@)?([a-z0-9.-]+(:\d+)?/)?[a-z0-9._-]+(/[a-z0-9._-]+)*(:[\w][\w.-]{0,127})?"
)


def _int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _text(least):
    return lambda v: isinstance(v, str) and len(v) >= least


def _list_of(check):
    return lambda v: isinstance(v, list) and all(check(one) for one in v)


def _matches(pattern):
    return lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None


def _truth(v):
    return isinstance(v, bool)


def _environment(v):
    return isinstance(v, dict) and all(
        re.fullmatch(r"[A-Za-z_]\w*", key) and isinstance(value, str | int | bool)
        for key, value in v.items()
    )


def _mount(v):
    if isinstance(v, str):
        return v.startswith("/")
    if not isinstance(v, dict) or set(v) - {"hostPath", "containerPath", "sizeGb"}:
        return False
    if v.get("hostPath") == "tmpfs":
        return "containerPath" in v and POSITIVE(v.get("sizeGb"))
    return bool(v) and "sizeGb" not in v and all(isinstance(path, str) for path in v.values())


def _port(v):
    return _int(v) or (isinstance(v, dict) and _int(v.get("containerPort")))


FRAGMENTS = _list_of(_text(2))
MAILS = _list_of(_matches(r"\S+@\S+"))
# key: (required, check or the keys below it)
JOB = {
    "name": (True, _text(1)),
    "description": (False, _text(0)),
    "deploymentEnvironment": (True, _matches("production|staging")),
    "owner": (
        True,
        {"projectUrn": (True, _matches(r"urn:publicid:IDN\+[^+\s]+\+project\+[^+\s]+"))},
    ),
    "request": (
        True,
        {
            "resources": (
                True,
                {
                    "cpus": (True, POSITIVE),
                    "gpus": (True, NATURAL),
                    "cpuMemoryGb": (True, POSITIVE),
                    "gpuMemoryGb": (False, lambda v: _int(v) and v > 1),
                    "gpuModel": (False, FRAGMENTS),
                    "features": (False, FRAGMENTS),
                    "minCudaVersion": (False, _int),
                    "clusterId": (False, _int),
                    "slaveName": (False, _text(1)),
                    "slaveInstanceId": (False, _text(1)),
                },
            ),
            "docker": (
                True,
                {
                    "image": (True, lambda v: isinstance(v, str) and IMAGE.fullmatch(v)),
                    "command": (False, lambda v: isinstance(v, str) or _list_of(_text(0))(v)),
                    "environment": (False, _environment),
                    "storage": (False, _list_of(_mount)),
                    "portMappings": (False, _list_of(_port)),
                    "projectGidVariableName": (False, _text(1)),
                    "workingDir": (False, _matches(r"/([^\n/]+/)*")),
                    "groupAdd": (False, _list_of(_matches(r"\w+"))),
                    "user": (False, _matches(r"\w+")),
                },
            ),
            "scheduling": (
                False,
                {
                    "interactive": (False, _truth),
                    "restartable": (False, _truth),
                    "allowHaltWithoutSignal": (False, _truth),
                    "minDuration": (False, lambda v: _text(1)(v) and DURATION.fullmatch(v)),
                    "maxDuration": (False, lambda v: _text(1)(v) and DURATION.fullmatch(v)),
                    "reservationIds": (False, _list_of(_matches(r"[0-9a-f-]{36}"))),
                    "maxSimultaneousJobs": (False, lambda v: isinstance(v, dict)),
                    "notBefore": (False, _text(1)),
                    "notAfter": (False, _text(1)),
                },
            ),
            "extra": (
                False,
                {
                    "sshPubKeys": (False, _list_of(_matches(r"ssh-(ed25519|rsa)\S* .*"))),
                    **{
                        f"emailOn{when}": (False, MAILS)
                        for when in ("Queue", "Run", "End", "Halt", "Restart")
                    },
                },
            ),
        },
    ),
}


def problems(document, rules=None, where=""):
    """Return all that is wrong with a job; empty when it is accepted."""
    if not isinstance(document, dict):
        return [f"{where or 'job'}: not an object"]
    rules = JOB if rules is None else rules
    found = [
        f"{where}{key}: Extra inputs are not permitted" for key in document if key not in rules
    ]
    for key, (required, check) in rules.items():
        if document.get(key) is None:
            found += [f"{where}{key}: Field required"] if required else []
        elif isinstance(check, dict):
            found += problems(document[key], check, f"{where}{key}.")
        elif not check(document[key]):
            found.append(f"{where}{key}: {document[key]!r:.80} is not valid")
    return found

"""Answers of the three interfaces, and the codes of GENI's and Emulab's errors."""

import uuid

SUCCESS, BADARGS, ERROR, FORBIDDEN = 0, 1, 2, 3
TOOBIG, REFUSED, SEARCHFAILED, UNSUPPORTED, BUSY, EXPIRED = 6, 7, 12, 13, 14, 15
GONE, ALREADYEXISTS, OUT_OF_RANGE = 11, 17, 19
INSUFFICIENT_NODES, NO_MAPPING, NOT_IMPLEMENTED, UNAVAILABLE = 26, 28, 100, 503
NO_SUCH_METHOD = 1  # an XML-RPC fault of Python's own server
_PRIVILEGES = "Insufficient privileges: No credential was found with appropriate privileges."
_TOO_MUCH = "insufficient resources to fulfill request"

# What Emulab puts into `geni_code`; it knows more codes than the standard (am_code).
_STANDARD = range(18)


class Refusal(Exception):
    """A call that fails with a code; the text goes into `output`."""

    def __init__(self, code, output):
        super().__init__(output)
        self.code, self.output = code, output


class Fault(Exception):
    """A call that ends in an XML-RPC fault, before any interface has seen it."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.text = code, text


def malformed(text):
    """Returns the refusal of arguments that make no sense."""
    return Refusal(BADARGS, f"Malformed arguments: {text}")


def busy(text="resource is busy; try again later"):
    """Returns the refusal of a call that may be repeated later."""
    return Refusal(BUSY, text)


def gcf(code=SUCCESS, value="", output=""):
    """Returns an answer of the AM API as GENI's reference aggregate gives it."""
    code, output = _as_gcf(code, output)
    codes = {"geni_code": code, "am_type": "gcf", **({} if code else {"am_code": 0})}
    return {"code": codes, "value": "" if code else value, "output": output}


def _as_gcf(code, output):
    """Returns what GENI's reference aggregate says for what Emulab says."""
    if code == FORBIDDEN:
        return ERROR, _PRIVILEGES
    if code in (INSUFFICIENT_NODES, NO_MAPPING):
        return TOOBIG, _TOO_MUCH
    if code != REFUSED:
        return code, output
    if "expiration" in output:
        return OUT_OF_RANGE, output
    return (GONE if "allocated" in output else UNSUPPORTED), output


def struct(code=SUCCESS, value=0, output=""):
    """Returns an answer of the AM API as Emulab gives it: with am_code; 0 instead of nothing."""
    geni = code if code in _STANDARD else ERROR
    codes = {"geni_code": geni, "am_type": "protogeni", "am_code": code}
    if code:
        log = uuid.uuid4().hex
        url = f"https://www.wall2.ilabt.example/spewlogfile.php3?logfile={log}"
        codes |= {"protogeni_error_log": log, "protogeni_error_url": url}
    return {"code": codes, "value": value, "output": output}


def plain(code=SUCCESS, value=0, output=""):
    """Returns an answer of the authorities: code is a number."""
    return {"code": code, "value": value, "output": output}

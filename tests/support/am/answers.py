"""Answers of the three interfaces, and the codes of GENI's and Emulab's errors."""

SUCCESS, BADARGS, ERROR, FORBIDDEN = 0, 1, 2, 3
TOOBIG, REFUSED, SEARCHFAILED, UNSUPPORTED, BUSY, EXPIRED = 6, 7, 12, 13, 14, 15
GONE, ALREADYEXISTS, OUT_OF_RANGE = 11, 17, 19
INSUFFICIENT_NODES, NO_MAPPING = 26, 28
NO_SUCH_METHOD = 1  # an XML-RPC fault of Python's own server
_PRIVILEGES = "Insufficient privileges: No credential was found with appropriate privileges."
_TOO_MUCH = "insufficient resources to fulfill request"
_LOG = "https://www.wall2.ilabt.example/spewlogfile.php3?logfile=1"


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
    return Refusal(BADARGS, f"Malformed arguments: {text}")


def busy(text="resource is busy; try again later"):
    return Refusal(BUSY, text)


def gcf(code=SUCCESS, value="", output=""):
    """Returns an answer of the AM API as GENI's reference aggregate gives it."""
    if code == FORBIDDEN:
        code, output = ERROR, _PRIVILEGES
    elif code in (INSUFFICIENT_NODES, NO_MAPPING):
        code, output = TOOBIG, _TOO_MUCH
    elif code == REFUSED:
        gone = GONE if "allocated" in output else UNSUPPORTED
        code = OUT_OF_RANGE if "expiration" in output else gone
    codes = {"geni_code": code, "am_type": "gcf", **({} if code else {"am_code": 0})}
    return {"code": codes, "value": "" if code else value, "output": output}


def struct(code=SUCCESS, value=0, output=""):
    """Returns an answer of the AM API as Emulab gives it: with am_code; 0 instead of nothing."""
    # Emulab knows more codes than the standard.
    codes = {"geni_code": code if code < 18 else ERROR, "am_type": "protogeni", "am_code": code}
    codes |= {"protogeni_error_url": _LOG} if code else {}
    return {"code": codes, "value": value, "output": output}


def plain(code=SUCCESS, value=0, output=""):
    """Returns an answer of the authorities: code is a number."""
    return {"code": code, "value": value, "output": output}

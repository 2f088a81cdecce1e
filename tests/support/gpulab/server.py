"""A GPULab service over TLS with client certificates, as the public client 3.11.12 speaks to it.

What it answers, code by code, is after the facts of REST v4.0; texts of errors are its own.
"""

import json
import re
import ssl
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from support.gpulab import schema
from support.gpulab.service import ENDED, now

PREFIX = "/api/gpulab/v4.0/"
STATES = ("CANCELLED", "MUSTHALT", "ONHOLD", "QUEUED")


@dataclass
class Stumble:
    """What becomes of requests `METHOD path`: `503 busy`, `drop`, `late`, `slow` or `body`."""

    request: str
    what: str
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    text: str = ""


class Server:
    """Serves one `Service`; `url` is the master URL, `requests` what was asked."""

    def __init__(self, service, authority, certificate):
        self.service = service
        self.stumbles, self.requests, self.connections = [], [], 0
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.load_verify_locations(authority.path)
        context.verify_mode = ssl.CERT_REQUIRED
        self._http = _HTTP(("127.0.0.1", 0), _Handler)
        self._http.context, self._http.gpulab = context, self
        self.url = f"https://localhost:{self._http.server_address[1]}/api/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)
        self.service.close()

    def stumble(self, request):
        for stumble in self.stumbles:
            if re.search(stumble.request, request) and stumble.times > 0:
                if stumble.skip:
                    stumble.skip -= 1
                    continue
                stumble.times -= 1
                return stumble
        return None


class _HTTP(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def get_request(self):
        plain, address = super().get_request()
        self.gpulab.connections += 1
        # Shaken in the handler's thread, so that no client keeps others waiting.
        return (
            self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False),
            address,
        )

    def handle_error(self, request, client_address):
        pass  # a client that was turned away


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._serve("GET")

    def do_POST(self):
        self._serve("POST")

    def do_PUT(self):
        self._serve("PUT")

    def do_DELETE(self):
        self._serve("DELETE")

    def _serve(self, method):
        gpulab = self.server.gpulab
        parts = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        what = f"{method} {parts.path.removeprefix(PREFIX)}"
        gpulab.requests.append((what, self.body))
        self._dropped = False
        if not parts.path.startswith(PREFIX):
            return self._text(404, "no such API")
        stumble = gpulab.stumble(what)
        if stumble and self._stumble(stumble):
            return None
        self.user = self._user()
        if self.user is None:
            return self._text(401, "the certificate names no user")
        return self._route(method, parts.path.removeprefix(PREFIX).strip("/").split("/"))

    def _stumble(self, stumble):
        """Go wrong; returns whether that was the answer."""
        if stumble.what == "slow":
            time.sleep(stumble.seconds)
            return False
        if stumble.what == "late":
            self._dropped = True
            return False
        if stumble.what == "drop":
            self.close_connection = True
        elif stumble.what == "body":
            self._send(200, stumble.text.encode("latin-1"), "application/json")
        else:
            status, _, text = stumble.what.partition(" ")
            self._text(int(status), text)
        return True

    def _user(self):
        names = self.connection.getpeercert().get("subjectAltName", ())
        urns = [v for kind, v in names if kind == "URI" and "+user+" in v]
        if not urns or urns[0].startswith("urn:publicid:IDN+wall2.ilabt.iminds.be+"):
            return None
        return urns[0]

    def _route(self, method, path):
        service = self.server.gpulab.service
        match (method, *path):
            case ("GET", "version"):
                self._json({"latest_client_version": "3.11.12"})
            case ("POST", "jobs"):
                self._submit()
            case ("GET", "jobs"):
                self._json({"items": self._listed()})
            case ("GET", "clusters"):
                self._json(clusters(service))
            case ("GET", "slaves"):
                self._json([slave(worker) for worker in service.workers])
            case (_, "jobs", id_, *rest) if id_ in service.jobs:
                self._job(method, service.jobs[id_], rest)
            case _:
                self._text(404, "not found")

    def _submit(self):
        gpulab = self.server.gpulab
        document = json.loads(self.body)
        if found := schema.problems(document):
            return self._text(400, "; ".join(found))
        project = document["owner"]["projectUrn"].rsplit("+", 1)[-1]
        if project != "myproj":
            return self._text(403, f"no permission to submit for project {project}")
        if gpulab.service.over_quota(self.user):
            return self._text(409, f"at most {gpulab.service.quota} jobs of a user at a time")
        job = gpulab.service.submit(document, self.user, hold=self.query.get("hold") == "true")
        return self._send(200, job.uuid.encode(), "text/plain")

    def _listed(self):
        jobs = [describe(job, self.user) for job in self.server.gpulab.service.jobs.values()]
        if urn := self.query.get("user_urn"):
            jobs = [job for job in jobs if job["owner"]["userUrn"] == urn]
        return jobs[: int(self.query.get("page_size", 50))]

    def _job(self, method, job, rest):
        service = self.server.gpulab.service
        match (method, *rest):
            case ("GET",):
                self._json(describe(job, self.user))
            case ("DELETE",):
                service.delete(job)
                self._send(204, b"")
            case ("PUT", "state", "status"):
                wanted = self.body.decode()
                if wanted not in STATES:
                    self._text(400, f"{wanted} is no state to ask for")
                elif service.ask(job, wanted):
                    self._send(204, b"")
                else:
                    self._text(409, f"the job is {job.status}")
            case ("GET", "log"):
                self._log(job)
            case ("GET", "debug"):
                self._json(job.events)
            case _:
                self._text(404, "not found")

    def _log(self, job):
        content = job.content()
        if not content:
            return self._send(204, b"")
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not asked:
            return self._send(200, content, "text/plain")
        first = int(asked[1])
        if first >= len(content):
            return self._send(416, b"", extra={"Content-Range": f"bytes */{len(content)}"})
        span = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return self._send(206, content[first:], "text/plain", {"Content-Range": span})

    def _json(self, content):
        self._send(200, json.dumps(content).encode(), "application/json")

    def _text(self, status, text):
        self._send(status, text.encode(), "text/plain")

    def _send(self, status, content, kind="", extra=None):
        if self._dropped:
            self.close_connection = True
            return
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for key, value in (extra or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)


def describe(job, user):
    """Return a job as the service tells it; strangers see no more than that it is there."""
    document = json.loads(json.dumps(job.document))
    scheduling = document["request"].setdefault("scheduling", {})
    scheduling.setdefault("minDuration", "2 days")
    scheduling.setdefault("maxDuration", "1 week")
    state = {
        "status": job.status,
        "scheduling": {
            "queuedExplanations": job.explanations,
            "haltEvents": [],
            "tallyIncrement": 0,
        },
        "eventTimes": {"created": next(iter(job.times.values()), now()), "statusUpdated": now()},
    }
    state["eventTimes"] |= {k: v for k, v in job.times.items() if k not in ("ONHOLD", "CANCELLING")}
    if job.worker:
        state["scheduling"] |= {
            "assignedClusterId": job.worker.cluster,
            "assignedInstanceId": f"{job.worker.name}-inst1",
            "assignedSlaveName": job.worker.name,
        }
    name = job.owner.rsplit("+", 1)[-1]
    owner = {
        "userUrn": job.owner,
        "userEmail": f"{name}@example.org",
        "projectUrn": document["owner"]["projectUrn"],
    }
    if job.owner != user:
        hidden = "urn:publicid:IDN+hidden+{}+hidden"
        owner |= {"userUrn": hidden.format("user"), "projectUrn": hidden.format("project")}
        owner["userEmail"] = "hidden@example.org"
        document["name"] = document["description"] = "hidden"
        document["request"]["docker"] = {"image": "hidden", "command": []}
    initial = {"initialJobUuid": job.uuid, "restartCount": 0}
    own = {"uuid": job.uuid, "owner": owner, "state": state, "restartInfo": initial}
    return {**document, **own}


def _amount(total, free):
    return {"systemTotal": total, "acquired": total, "used": total - free, "available": free}


def _gpu(worker):
    return {"vendor": "NVIDIA", "name": worker.gpu_model, "memoryMb": 32768}


def clusters(service):
    found = []
    for id_ in sorted({worker.cluster for worker in service.workers}):
        own = [worker for worker in service.workers if worker.cluster == id_]
        sums = [
            _amount(_all(own, name), sum(w.free[i] for w in own)) for i, name in enumerate(SIZES)
        ]
        active = [job for job in service.jobs.values() if job.worker in own]
        counts = dict.fromkeys(
            ("onhold", "queued", "assigned", "starting", "running", "musthalt", "halting"), 0
        )
        for job in active:
            if job.status not in ENDED and job.status.lower() in counts:
                counts[job.status.lower()] += 1
        found.append(
            {
                "clusterId": id_,
                "comment": f"cluster {id_}",
                "isPrivate": False,
                "slaveCount": len(own),
                "gpuModel": [_gpu(own[0])],
                "worker": _amount(len(own), sum(w.free[1] == w.gpus for w in own)),
                "cpu": sums[0],
                "gpu": sums[1],
                "cpuMemoryMb": {key: 1000 * value for key, value in sums[2].items()},
                "activeJobsCounts": counts,
                "haveAccess": True,
                "allowedProjects": [],
                "storagePathsAvailable": ["/project_ghent", "/project_scratch"],
                "storageAliasesAvailable": {},
                "deploymentEnvironment": "production",
            }
        )
    return found


SIZES = ("cpus", "gpus", "memory_gb")


def _all(workers, name):
    return sum(getattr(worker, name) for worker in workers)


def slave(worker):
    cpu, gpu, memory = (
        _amount(getattr(worker, name), free) for name, free in zip(SIZES, worker.free, strict=True)
    )
    return {
        "name": worker.name,
        "instanceId": f"{worker.name}-inst1",
        "clusterId": worker.cluster,
        "host": f"{worker.name}.example.org",
        "aliases": [],
        "comment": "",
        "softwareVersion": "4.0",
        "gpuModel": [_gpu(worker)],
        "cpuModel": [],
        "worker": _amount(1, int(worker.free[1] == worker.gpus)),
        "cpu": cpu,
        "gpu": gpu,
        "cpuMemoryMb": {key: 1000 * value for key, value in memory.items()},
        "lastUpdate": now(),
        "shuttingDown": False,
        "cudaVersionFull": f"{worker.cuda}.4",
        "cudaVersionMajor": worker.cuda,
        "acceptingJobs": True,
        "dockerDiskUsedPercent": 10,
        "activeJobUuids": [],
        "storagePathsAvailable": ["/project_ghent", "/project_scratch"],
        "storagePathsAvailableProjectLimited": {},
    }

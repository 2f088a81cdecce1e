"""A replica: answers requests to one version of a model, and scores a stream, in batches.

replica.py TRACK. It speaks the Open Inference Protocol v2, and writes its address and figures to
`state/replicas/JOB.json`. The model is in a process of its own, in the environment that it was
trained in (worker.py). After SIGTERM the replica answers what it has taken, and ends.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import stream
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

BATCH, DELAY_S, WAITING = 64, 0.002, 256  # requests
LARGEST = 64 * 2**20  # bytes of a request
WINDOW_S = 60.0
# HAProxy asks every second whether it is ready.
LEAST_DRAIN_S, MOST_DRAIN_S = 3.0, 60.0
Scored = tuple[int, int, bytes]  # status, number of rows, reply


class Broken(Exception):
    """The model cannot be loaded, or its process has ended."""


class Model:
    """The process with the model, which answers one batch at a time."""

    def __init__(self, track: dict[str, Any]) -> None:
        self.track, self._words = track, deque[str](maxlen=20)

    async def start(self) -> None:
        """Load the model. Raises `Broken`."""
        track, pipe = self.track, asyncio.subprocess.PIPE
        worker = (str(Path(__file__).with_name("worker.py")), track["folder"])
        self.process = await asyncio.create_subprocess_exec(
            *(f"{track['environment']}/bin/python", *worker),
            *(track["model"], track["version"]),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**os.environ, "OMP_NUM_THREADS": str(track["cpus"])},
        )
        self._listens = asyncio.create_task(self._listen())
        self.about = json.loads(await self._read(*struct.unpack("!I", await self._read(4))))

    async def _listen(self) -> None:
        while line := (await self.process.stderr.readline()).decode(errors="replace"):
            sys.stderr.write(line)
            self._words.append(line.strip())

    async def _read(self, size: int) -> bytes:
        try:
            return await self.process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            await self._listens
            last = next((line for line in reversed(self._words) if line), "it says nothing")
            raise Broken(f"the model's process ended: {last}") from None

    async def answer(self, bodies: list[bytes]) -> list[Scored]:
        """Return the answer to each request. Raises `Broken`."""
        words = [struct.pack("!I", len(body)) + body for body in bodies]
        with contextlib.suppress(ConnectionError):  # reading tells why
            self.process.stdin.write(b"".join((struct.pack("!I", len(bodies)), *words)))
            await self.process.stdin.drain()
        answers = []
        for _ in bodies:
            status, rows, size = struct.unpack("!HII", await self._read(10))
            answers.append((status, rows, await self._read(size)))
        return answers


class Replica:
    """A model, the queue before it, and figures."""

    def __init__(self, track: dict[str, Any], folder: Path) -> None:
        self.track, self.model = track, Model(track)
        self.address = track["addresses"][os.environ["SLURMD_NODENAME"]]
        self.login = folder.parent / "streams.json"
        self._file = folder / "replicas" / f"{os.environ['SLURM_JOB_ID']}.json"
        self.state, self.reason, self.port, self.pending = "starting", "", 0, 0
        self._queue, self.working = asyncio.Queue[Any](WAITING), 0
        self._took, self.ended = deque[Any](maxlen=5000), asyncio.Event()

    def note(self) -> None:
        """Write address and figures."""
        now = time.time()
        recent = [took for took in self._took if took[0] > now - WINDOW_S]
        seconds = sorted(took for _, took, _ in recent)
        document = {
            **{name: getattr(self, name) for name in ("state", "reason", "address", "port")},
            "time": now,
            "p50_s": seconds[len(seconds) // 2] if seconds else None,
            "p99_s": seconds[len(seconds) * 99 // 100] if seconds else None,
            "per_s": sum(n for *_, n in recent) / max(now - recent[0][0], 1) if recent else 0,
            "backlog": self._queue.qsize() + self.pending,
        }
        draft = self._file.with_suffix(".new")
        draft.write_text(json.dumps(document))
        draft.rename(self._file)

    def fail(self, error: BaseException | str) -> None:
        """End, and say why."""
        self.state, self.reason = "failed", str(error)
        self.ended.set()

    async def score(self, body: bytes, *, patient: bool = False) -> tuple[int, bytes]:
        """Return status and reply. If the queue is full, refuse a request that is not `patient`."""
        if self._queue.full() and not patient:
            return 503, b'{"error": "the queue of this replica is full"}'
        future, start = asyncio.get_running_loop().create_future(), time.time()
        self.working += 1
        try:
            await self._queue.put((body, future))
            status, rows, reply = await future
        finally:
            self.working -= 1
        self._took.append((time.time(), time.time() - start, rows))
        return status, reply

    async def batches(self) -> None:
        """Hand requests to the model, as many together as wait."""
        while True:
            batch = [await self._queue.get()]
            if self._queue.qsize() < BATCH - 1:
                await asyncio.sleep(DELAY_S)
            more = min(self._queue.qsize(), BATCH - 1)
            batch += [self._queue.get_nowait() for _ in range(more)]
            try:
                answers = await self.model.answer([body for body, _ in batch])
            except Broken as error:
                self.fail(error)
                # HAProxy asks another replica.
                answers = [(503, 0, json.dumps({"error": str(error)}).encode())] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def notes(self) -> None:
        """Write the figures every second."""
        while True:
            self.note()
            await asyncio.sleep(1)


def _routes(replica: Replica) -> list[Route]:
    version, model = replica.track["version"], f"/v2/models/{replica.track['model']}"

    async def answer(request: Request) -> Response:
        if request.path_params.get("version", version) != version:
            return JSONResponse({"error": f"this is version {version}"}, 404)
        what = request.url.path.rpartition("/")[2]
        if what == "infer":
            return await _infer(replica, request)
        if what in ("ready", "live"):
            right = what == "live" or replica.state == "ready"
            return JSONResponse({what: right}, 200 if right else 503)
        return JSONResponse(replica.model.about)

    gets = ("/v2/health/live", "/v2/health/ready")
    gets += tuple(f"{model}{of}{p}" for of in ("", "/versions/{version}") for p in ("", "/ready"))
    posts = (f"{model}/infer", f"{model}/versions/{{version}}/infer")
    return [Route(p, answer) for p in gets] + [Route(p, answer, methods=["POST"]) for p in posts]


async def _infer(replica: Replica, request: Request) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            return JSONResponse({"error": f"more than {LARGEST} bytes"}, 413)
    status, reply = await replica.score(bytes(body))
    headers = {"Retry-After": "1"} if status == 503 else {}
    return Response(reply, status, headers, "application/json")


async def main() -> None:
    """Runs until SIGTERM, or until the model breaks."""
    track, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[1]).parents[1]
    replica = Replica(track, folder)
    notes = asyncio.create_task(replica.notes())
    try:
        await replica.model.start()
    except (Broken, OSError) as error:
        replica.fail(error)
        replica.note()
        sys.exit(replica.reason)
    listener = socket.create_server((replica.address, 0), backlog=1024)
    # Connections inherit it; asyncio sets it for sockets of its own only.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    replica.port = listener.getsockname()[1]
    # Only HAProxy has the same certificate, which both show and expect.
    known = str(folder.parent / "replica.pem")
    tls = {"ssl_certfile": known, "ssl_ca_certs": known, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    # HAProxy closes connections that it does not use earlier than this.
    quiet = {"log_level": "warning", "access_log": False, "timeout_keep_alive": 300}
    app = Starlette(routes=_routes(replica))
    server = uvicorn.Server(uvicorn.Config(app, **quiet, **tls))
    server.capture_signals = contextlib.nullcontext  # SIGTERM drains first
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, replica.ended.set)
    replica.batching = asyncio.create_task(replica.batches())
    serving = asyncio.create_task(server.serve([listener]))
    scoring = asyncio.create_task(stream.score(replica)) if track["source"] else None
    replica.state = "ready"
    await replica.ended.wait()
    if replica.state == "ready":
        replica.state = "draining"
    start = time.time()
    if scoring:
        await asyncio.wait([scoring], timeout=MOST_DRAIN_S)
    while replica.working or time.time() < start + LEAST_DRAIN_S:
        await asyncio.sleep(0.1)
    server.should_exit = True
    await serving
    notes.cancel()
    replica.note()
    with contextlib.suppress(ProcessLookupError):
        replica.model.process.kill()
    sys.exit(replica.reason if replica.state == "failed" else None)


if __name__ == "__main__":
    asyncio.run(main())

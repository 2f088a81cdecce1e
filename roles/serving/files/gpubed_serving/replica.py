"""A replica: answers requests to one version of a model, and scores a stream, in batches.

replica.py TRACK. It speaks the Open Inference Protocol v2 and notes its address and its figures in
a file beside those of the other replicas. The model is in a process of its own, in the environment
that it was trained in (worker.py). SIGTERM lets it answer what it has taken, and end.
"""

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

BATCH, DELAY_S, WAITING = 64, 0.002, 256  # requests
LARGEST = 64 * 2**20  # bytes of a request
WINDOW_S = 60.0
LEAST_DRAIN_S = 3.0  # HAProxy asks every second whether it is ready
WORKER = Path(__file__).with_name("worker.py")


class Broken(Exception):
    """The model cannot be loaded, or its process has ended."""


class Model:
    """The process with the model, which has one batch at a time."""

    def __init__(self, track):
        self.track, self.words = track, deque(maxlen=20)

    async def start(self):
        track = self.track
        # A model is code of others: it cannot become root with sudo.
        self.process = await asyncio.create_subprocess_exec(
            *("setpriv", "--no-new-privs", f"{track['environment']}/bin/python", str(WORKER)),
            *(track["folder"], track["model"], track["version"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(track["cpus"])},
        )
        self.said = asyncio.create_task(self._listen())
        self.about = json.loads(await self._read(*struct.unpack("!I", await self._read(4))))

    async def _listen(self):
        while line := await self.process.stderr.readline():
            sys.stderr.write(line.decode(errors="replace"))
            self.words.append(line.decode(errors="replace").strip())

    async def _read(self, size):
        try:
            return await self.process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            await self.said
            why = next((line for line in reversed(self.words) if line), "it says nothing")
            raise Broken(f"the model's process ended: {why}") from None

    async def answer(self, bodies):
        """Return status, number of rows and reply of each request."""
        words = [struct.pack("!I", len(bodies)), *(struct.pack("!I", len(b)) + b for b in bodies)]
        with contextlib.suppress(ConnectionError):  # reading says why
            self.process.stdin.write(b"".join(words))
            await self.process.stdin.drain()
        replies = []
        for _ in bodies:
            status, rows, size = struct.unpack("!HII", await self._read(10))
            replies.append((status, rows, await self._read(size)))
        return replies


class Replica:
    """A model's queue, and what is known of it."""

    def __init__(self, track, folder):
        self.track, self.model = track, Model(track)
        self.file = folder / "replicas" / f"{os.environ['SLURM_JOB_ID']}.json"
        self.state, self.reason, self.port, self.pending = "starting", "", 0, 0
        self.queue, self.working = asyncio.Queue(WAITING), 0
        self.took, self.ended = deque(maxlen=5000), asyncio.Event()

    def note(self):
        """Write address and figures."""
        now = time.time()
        recent = [(at, s, rows) for at, s, rows in self.took if at > now - WINDOW_S]
        seconds = sorted(s for _, s, _ in recent)
        spent = max(now - recent[0][0] + recent[0][1], 1.0) if recent else 1.0
        figures = {
            "p50_s": seconds[len(seconds) // 2] if seconds else None,
            "p99_s": seconds[len(seconds) * 99 // 100] if seconds else None,
            "per_s": sum(rows for _, _, rows in recent) / spent,
            "backlog": self.queue.qsize() + self.pending,
            "working": self.working,
        }
        document = {"model": self.track["model"], "key": self.track["key"], "state": self.state}
        document |= {
            "reason": self.reason,
            "address": self.track["addresses"][os.environ["SLURMD_NODENAME"]],
        }
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({**document, "port": self.port, "time": now, **figures}))
        draft.rename(self.file)

    async def score(self, body, patient=False):
        """Return status and reply to a request; one that finds the queue full is refused, unless patient."""
        future, start = asyncio.get_running_loop().create_future(), time.time()
        if patient:
            await self.queue.put((body, future))
        else:
            try:
                self.queue.put_nowait((body, future))
            except asyncio.QueueFull:
                return 503, b'{"error": "the queue of this replica is full"}'
        self.working += 1
        try:
            status, rows, reply = await future
        finally:
            self.working -= 1
        self.took.append((time.time(), time.time() - start, rows))
        return status, reply

    async def batches(self):
        """Hand requests to the model, as many together as wait."""
        while True:
            batch = [await self.queue.get()]
            if self.queue.qsize() < BATCH - 1:
                await asyncio.sleep(DELAY_S)
            batch += [self.queue.get_nowait() for _ in range(min(self.queue.qsize(), BATCH - 1))]
            try:
                replies = await self.model.answer([body for body, _ in batch])
            except Broken as error:
                reply = json.dumps({"error": str(error)}).encode()
                replies = [(500, 0, reply)] * len(batch)
                self.state, self.reason = "failed", str(error)
                self.ended.set()
            for (_, future), reply in zip(batch, replies):
                if not future.done():
                    future.set_result(reply)

    async def notes(self):
        """Write the figures every second."""
        while True:
            self.note()
            await asyncio.sleep(1)


def pages(replica, token):
    """Return the pages of the protocol."""

    def page(path, answer, method="GET"):
        async def endpoint(request):
            if not hmac.compare_digest(request.headers.get("authorization", ""), f"Bearer {token}"):
                return JSONResponse({"error": "wrong token"}, 401)
            return await answer(request)

        return Route(path, endpoint, methods=[method])

    async def live(request):
        return JSONResponse({"live": True})

    async def ready(request):
        is_ready = replica.state == "ready"
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def server(request):
        return JSONResponse({"name": "gpubed", "version": "2", "extensions": []})

    async def metadata(request):
        if request.path_params.get("version", version) != version:
            return JSONResponse({"error": f"this is version {version}"}, 404)
        return JSONResponse(replica.model.about)

    async def infer(request):
        if request.path_params.get("version", version) != version:
            return JSONResponse({"error": f"this is version {version}"}, 404)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                return JSONResponse({"error": f"more than {LARGEST} bytes"}, 413)
        status, reply = await replica.score(bytes(body))
        headers = {"Retry-After": "1"} if status == 503 else {}
        return Response(reply, status, headers, "application/json")

    version, model = replica.track["version"], f"/v2/models/{replica.track['model']}"
    return [
        page("/v2/health/live", live),
        page("/v2/health/ready", ready),
        page("/v2", server),
        *(
            page(f"{model}{of}{path}", answer, method)
            for of in ("", "/versions/{version}")
            for path, answer, method in (
                ("", metadata, "GET"),
                ("/ready", ready, "GET"),
                ("/infer", infer, "POST"),
            )
        ),
    ]


async def main():
    """Runs until SIGTERM, or until the model breaks."""
    track, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[1]).parents[1]
    replica = Replica(track, folder)
    notes = asyncio.create_task(replica.notes())
    try:
        await replica.model.start()
    except (Broken, OSError) as error:
        replica.state, replica.reason = "failed", str(error)
        replica.note()
        sys.exit(str(error))
    listener = socket.create_server(
        (track["addresses"][os.environ["SLURMD_NODENAME"]], 0), backlog=1024
    )
    # Connections inherit it; asyncio sets it for sockets of its own only.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    replica.port = listener.getsockname()[1]
    app = Starlette(routes=pages(replica, (folder / "token").read_text().strip()))
    # HAProxy closes unused connections, and before this server does.
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=300,
                            timeout_graceful_shutdown=60)  # fmt: skip
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # SIGTERM drains first
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, replica.ended.set)
    tasks = [asyncio.create_task(replica.batches()), asyncio.create_task(server.serve([listener]))]
    replica.state = "ready"
    scoring = None
    if track.get("source"):
        import stream  # loads NATS' client

        scoring = asyncio.create_task(stream.score(replica))
        scoring.add_done_callback(lambda task: stream.failed(replica, task))
    await replica.ended.wait()
    failed = replica.state == "failed"
    replica.state = "failed" if failed else "draining"
    if scoring:
        await asyncio.wait([scoring], timeout=60)
    start = time.time()
    while not failed and (replica.working or time.time() < start + LEAST_DRAIN_S):
        await asyncio.sleep(0.1)
    server.should_exit = True
    await tasks[1]
    replica.state = "failed" if failed else "ended"
    notes.cancel()
    replica.note()
    replica.model.process.kill()
    sys.exit(replica.reason if failed else None)


if __name__ == "__main__":
    asyncio.run(main())

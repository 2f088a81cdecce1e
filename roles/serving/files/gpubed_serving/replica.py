"""A replica: answers requests to one version of a model, and scores a stream, in batches.

python -m gpubed_serving.replica TRACK, in the environment that the model was trained in. It speaks
the Open Inference Protocol v2. Once the model is loaded, it writes its address and figures to
`state/replicas/JOB.json` every second. After SIGTERM it answers what it has taken, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn
from gpubed_serving import stream
from gpubed_serving.model import Model
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

BATCH, DELAY_S, WAITING = 64, 0.002, 256  # requests
LARGEST = 64 * 2**20  # bytes of a request
WINDOW_S = 60.0
# HAProxy asks every second whether it is ready.
LEAST_DRAIN_S, MOST_DRAIN_S = 3.0, 60.0


class Replica:
    """A model, the queue before it, and figures.

    Attributes:
        ended: It is to take no more.
        pending: Number of the stream's messages that no replica has taken.
        reason: What keeps it from scoring the stream.
    """

    def __init__(self, track: dict[str, Any], model: Model, thread: ThreadPoolExecutor) -> None:
        self.track, self.model, self._thread = track, model, thread
        self._queue, self._took = asyncio.Queue[Any](WAITING), deque[Any](maxlen=5000)
        self.ended, self.pending, self.reason = asyncio.Event(), 0, ""

    async def score(self, body: bytes, *, patient: bool = False) -> tuple[int, bytes]:
        """Return status and reply. If the queue is full, refuse a request that is not `patient`."""
        if self._queue.full() and not patient:
            return 503, b'{"error": "the queue of this replica is full"}'
        future, start = asyncio.get_running_loop().create_future(), time.time()
        await self._queue.put((body, future))
        status, rows, reply = await future
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
            bodies = [body for body, _ in batch]
            answered = self._thread.submit(self.model.answer, bodies)
            answers = await asyncio.wrap_future(answered)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def notes(self, file: Path, where: dict[str, Any]) -> None:
        """Write address and figures every second."""
        while True:
            now = time.time()
            recent = [took for took in self._took if took[0] > now - WINDOW_S]
            seconds = sorted(took for _, took, _ in recent)
            document = {
                **where,
                "time": now,
                "reason": self.reason,
                "p50_s": seconds[len(seconds) // 2] if seconds else None,
                "p99_s": seconds[len(seconds) * 99 // 100] if seconds else None,
                "per_s": sum(n for *_, n in recent) / max(now - recent[0][0], 1) if recent else 0,
                "backlog": self._queue.qsize() + self.pending,
            }
            file.with_suffix(".new").write_text(json.dumps(document))
            file.with_suffix(".new").rename(file)
            await asyncio.sleep(1)


def _app(replica: Replica) -> Starlette:
    name, version = replica.track["model"], replica.track["version"]

    async def ready(_: Request) -> Response:
        right = not replica.ended.is_set()
        return JSONResponse({"name": name, "ready": right}, 200 if right else 503)

    async def about(_: Request) -> Response:
        return JSONResponse(replica.model.about)

    async def infer(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                return JSONResponse({"error": f"more than {LARGEST} bytes"}, 413)
        status, reply = await replica.score(bytes(body))
        headers = {"Retry-After": "1"} if status == 503 else {}
        return Response(reply, status, headers, "application/json")

    async def refuse(_: Request, error: Any) -> Response:
        why = f"{error.detail}: this is version {version}"
        return JSONResponse({"error": why}, error.status_code)

    routes = [Route("/v2/health/ready", ready)]
    for base in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{version}"):
        routes += [Route(base, about), Route(f"{base}/ready", ready)]
        routes += [Route(f"{base}/infer", infer, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


async def _serve(replica: Replica, root: Path) -> None:
    """Serve until SIGTERM, and answer what was taken by then."""
    address = replica.track["addresses"][os.environ["SLURMD_NODENAME"]]
    listener = socket.create_server((address, 0), backlog=1024)
    # Connections inherit it; asyncio sets it for sockets of its own only.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Only HAProxy has the same certificate, which both show and expect.
    known = str(root / "replica.pem")
    tls = {"ssl_certfile": known, "ssl_ca_certs": known, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    # HAProxy closes connections that it does not use earlier than this.
    quiet = {"log_level": "warning", "access_log": False, "timeout_keep_alive": 300}
    server = uvicorn.Server(uvicorn.Config(_app(replica), **quiet, **tls))
    server.capture_signals = contextlib.nullcontext  # SIGTERM drains first
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, replica.ended.set)
    file = root / "state/replicas" / f"{os.environ['SLURM_JOB_ID']}.json"
    works = (
        server.serve([listener]),
        stream.score(replica, root / "streams.json"),
        replica.batches(),
        replica.notes(file, {"address": address, "port": listener.getsockname()[1]}),
    )
    serving, scoring, *_others = [asyncio.create_task(work) for work in works]
    await replica.ended.wait()
    await asyncio.sleep(LEAST_DRAIN_S)
    await asyncio.wait([scoring], timeout=MOST_DRAIN_S)
    server.should_exit = True
    await serving


def main() -> None:
    """Loads the model, on the thread that calls it, and serves it."""
    track, thread = json.loads(Path(sys.argv[1]).read_text()), ThreadPoolExecutor(1)
    model = thread.submit(Model, *(track[n] for n in ("folder", "model", "version"))).result()
    asyncio.run(_serve(Replica(track, model, thread), Path(sys.argv[1]).parents[2]))


if __name__ == "__main__":
    main()

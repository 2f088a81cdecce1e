"""Scores a stream into another: a message is acknowledged after its result is stored.

The replicas of a model share a durable consumer. A result carries the number of its message, by
which the server drops a second one. A message that cannot be scored goes to the stream SOURCE-dead,
with the reason.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

if TYPE_CHECKING:
    from gpubed_serving.replica import Replica

AT_ONCE, LOOPS = 64, 2
ACK_S, MOST_TRIES, AGAIN_S = 60, 5, 5


async def score(replica: Replica, login: Path) -> None:
    """Score until the replica ends; streams that do not answer are asked again."""
    source, target = replica.track["source"], replica.track["target"]
    while source and not replica.ended.is_set():
        try:
            await _score(replica, json.loads(login.read_text()))
        except NotFoundError:
            replica.reason = f"stream {source} is not there yet"
            await asyncio.sleep(AGAIN_S)
        except Exception as error:
            replica.reason = f"the streams {source}, {target} do not answer: {error!r}"
            await asyncio.sleep(AGAIN_S)


async def _score(replica: Replica, login: dict[str, Any]) -> None:
    model, source = replica.track["model"], replica.track["source"]
    durable = f"serving-{model}"
    who = {name: login[name] for name in ("user", "password")}
    tls = ssl.create_default_context(cafile=login["ca"])
    servers = login["servers"]
    async with await nats.connect(servers, **who, tls=tls, max_reconnect_attempts=-1) as own:
        jets = own.jetstream()
        names = (replica.track["target"], f"{source}-dead")
        target, dead = [await _subject(jets, name, login["stream"]) for name in names]
        await jets.add_consumer(source, ConsumerConfig(durable_name=durable, ack_wait=ACK_S))
        pulled = await jets.pull_subscribe_bind(durable=durable, stream=source)

        async def one(message: Msg) -> None:
            number, tries = message.metadata.sequence.stream, message.metadata.num_delivered
            status, reply = 500, b'{"error": "several replicas ended while they scored it"}'
            if tries <= MOST_TRIES:
                status, reply = await replica.score(message.data, patient=True)
            headers = {
                "Nats-Msg-Id": f"{model}:{source}:{number}",
                "Gpubed-Source": f"{source}:{number}",
            }
            if status == 200:
                await jets.publish(target, reply, headers=headers)
            else:
                headers["Gpubed-Reason"] = " ".join(json.loads(reply)["error"].split())
                await jets.publish(dead, message.data, headers=headers)
            await message.ack()

        async def loop() -> None:
            while not replica.ended.is_set():
                try:
                    messages = await pulled.fetch(AT_ONCE, timeout=1)
                    done = await asyncio.gather(*map(one, messages), return_exceptions=True)
                    # The server delivers again what was not acknowledged.
                    fault = next((error for error in done if error), None)
                    replica.reason = f"results are not stored: {fault!r}" if fault else ""
                    replica.pending = (await pulled.consumer_info()).num_pending
                except TimeoutError:
                    replica.pending = 0

        await asyncio.gather(*(loop() for _ in range(LOOPS)))


async def _subject(jets: JetStreamContext, name: str, made: dict[str, Any]) -> str:
    """Return a subject of a stream, which is made if there is none."""
    try:
        info = await jets.stream_info(name)
    except NotFoundError:
        info = await jets.add_stream(name=name, subjects=[name], **made)
    return (info.config.subjects or [name])[0].replace(">", "scored").replace("*", "scored")

"""Scores a stream into another: a message is acknowledged after its result is stored.

The replicas of a model share a durable consumer. Results carry the number of their message, by
which the server drops a second one. A message that cannot be scored goes to the stream
SOURCE-dead, with the reason.
"""

import asyncio
import json
import ssl
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

AT_ONCE, LOOPS = 64, 2
ACK_S, MOST_TRIES = 60, 5


async def score(replica):
    """Score until the replica ends."""
    track = replica.track
    source, target, dead = track["source"], track["target"], f"{track['source']}-dead"
    login = json.loads((Path.home() / ".config/gpubed/streams.json").read_text())
    connection = await nats.connect(
        login["url"],
        user=login["user"],
        password=login["password"],
        tls=ssl.create_default_context(cafile=login["ca"]),
        max_reconnect_attempts=-1,
    )
    jets, durable = connection.jetstream(), f"serving-{track['model']}"
    subjects = {name: await _subject(jets, name) for name in (target, dead)}
    wanted = ConsumerConfig(durable_name=durable, ack_wait=ACK_S, max_ack_pending=10000)
    await jets.add_consumer(source, wanted)
    subscription = await jets.pull_subscribe_bind(durable=durable, stream=source)

    async def one(message):
        number = message.metadata.sequence.stream
        if message.metadata.num_delivered > MOST_TRIES:
            status, reply = 500, b'{"error": "several replicas ended while they scored it"}'
        else:
            status, reply = await replica.score(message.data, patient=True)
        if replica.state == "failed":
            return  # another replica gets it
        headers = {
            "Nats-Msg-Id": f"{track['model']}:{source}:{number}",
            "Gpubed-Source": f"{source}:{number}",
        }
        if status == 200:
            await jets.publish(subjects[target], reply, headers=headers)
        else:
            headers["Gpubed-Reason"] = " ".join(json.loads(reply)["error"].split())
            await jets.publish(subjects[dead], message.data, headers=headers)
        await message.ack()

    async def loop():
        while not replica.ended.is_set():
            try:
                messages = await subscription.fetch(AT_ONCE, timeout=1)
            except nats.errors.TimeoutError:
                messages = []
            done = await asyncio.gather(*map(one, messages), return_exceptions=True)
            # What was not stored is delivered again.
            fault = next((error for error in done if error), None)
            replica.reason = f"results are not stored: {fault}" if fault else ""
            replica.pending = (await subscription.consumer_info()).num_pending

    await asyncio.gather(*(loop() for _ in range(LOOPS)))
    await connection.close()


async def _subject(jets, name):
    """Return the subject of a stream, which is made if there is none."""
    try:
        subjects = (await jets.stream_info(name)).config.subjects or [name]
    except NotFoundError:
        subjects = (await jets.add_stream(name=name, subjects=[name])).config.subjects
    return subjects[0].replace(">", "scored").replace("*", "scored")


def failed(replica, task):
    """End a replica whose stream cannot be read."""
    if not task.cancelled() and task.exception():
        replica.state, replica.reason = "failed", f"its streams: {task.exception()!r}"
        replica.ended.set()

"""Reads a stream into a dataset, which alone knows how far: the server keeps no account of it."""

from __future__ import annotations

import argparse
import hashlib
import re
import ssl

import nats
from dataset import Dataset
from nats.js import api


async def read(arguments: argparse.Namespace, own: dict, dataset: Dataset) -> int:
    """Fills a dataset; goes on when a server fails and another one, or the same, answers again.

    Args:
        arguments: The job's arguments.
        own: The account's `streams.json`.
        dataset: What to fill.

    Returns:
        The number of messages with a wrong checksum.

    Raises:
        nats.errors.Error: There is no such stream, or no server answers.
        ValueError: The dataset was filled from another stream of that name.
    """
    dead, stream, taken = 0, arguments.stream, dataset.last
    async with await nats.connect(
        own["servers"],
        user=own["user"],
        password=own["password"],
        tls=ssl.create_default_context(cafile=own["ca"]),
        error_cb=_say,
    ) as connection:
        streams = connection.jetstream()
        state = (await streams.stream_info(stream)).state
        if taken > state.last_seq:
            raise ValueError(
                f"{dataset.folder} ends with message {taken}, and stream {stream} with "
                f"{state.last_seq}: it is another one of that name; choose another dataset"
            )
        if state.messages and state.first_seq > taken + 1:
            print(f"messages {taken + 1} to {state.first_seq - 1} are gone from the stream")
        # An ordered consumer asks again for what did not arrive, and its flow control limits what
        # waits in memory: above limits of its own, the client would drop messages.
        messages = await streams.subscribe(
            ">",
            stream=stream,
            ordered_consumer=True,
            config=api.ConsumerConfig(
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=taken + 1
            ),
            pending_msgs_limit=0,
            pending_bytes_limit=0,
        )
        begun = await messages.consumer_info()
        left = begun.delivered.consumer_seq + begun.num_pending
        while arguments.until == "forever" or (left and taken < state.last_seq):
            try:
                message = await messages.next_msg(timeout=arguments.flush_s)
            except nats.errors.TimeoutError:
                dataset.commit(taken)
                continue
            sequence, left = message.metadata.sequence.stream, message.metadata.num_pending
            if sequence <= taken:  # nats-py goes back to 1 if it is reset before its first message
                continue
            taken = sequence
            given = message.headers or {}
            checksum = given.get("checksum", "").lower()
            if checksum and checksum != hashlib.sha256(message.data).hexdigest():
                dead += 1
                name = f"{stream}-dead"
                # By its id, the server drops a second one of two minutes.
                told = {"Nats-Msg-Id": f"{taken}", "sequence": f"{taken}"}
                told |= {"subject": message.subject}
                await streams.add_stream(name=name, subjects=[name], **own["stream"])
                await streams.publish(name, message.data, headers=given | told)
                print(f"message {taken} has a wrong checksum and is in stream {name}")
                continue
            suffix = given.get("ext", "bin")
            if suffix == "cls" or not re.fullmatch("[a-z0-9]{1,8}", suffix):
                suffix = "bin"
            dataset.add(taken, message.data, suffix, given.get("class", "unlabelled"))
            if dataset.is_full(arguments.shard_messages, arguments.shard_mib):
                dataset.commit(taken)
        dataset.commit(taken)
    return dead


async def _say(error: Exception) -> None:
    print(f"{type(error).__name__}: {error}", flush=True)

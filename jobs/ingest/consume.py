"""Reads a stream into a dataset: a message is acknowledged after its shard is on the disk."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import math
import re
import ssl
import sys

import nats
from dataset import Dataset
from nats.js import api
from nats.js.errors import NotFoundError

# Messages that the client holds in memory at once; the server limits each to 1 MiB.
BATCH = 100
# Attempts without a shard between them, each after a second or a timeout of the server.
PATIENCE = 120


class Lost(nats.errors.Error):
    """A message was sent, and did not arrive."""


class Reader:
    """Reads one stream; counts messages that it adds, and those with a wrong checksum.

    Args:
        arguments: The job's arguments.
        dataset: What it fills.
    """

    def __init__(self, arguments: argparse.Namespace, dataset: Dataset) -> None:
        self.arguments, self.dataset, self.end = arguments, dataset, None
        self.messages = self.dead = self.taken = 0
        self._replies: list[str] = []

    async def run(self, own: dict) -> None:
        """Reads until the end, through failures of servers and network.

        Args:
            own: The account's `streams.json`.
        """
        self.nats = await nats.connect(
            own["servers"],
            user=own["user"],
            password=own["password"],
            tls=ssl.create_default_context(cafile=own["ca"]),
            max_reconnect_attempts=PATIENCE,
            reconnect_time_wait=1,
            error_cb=_say,
        )
        self.streams, tries, before = self.nats.jetstream(), 0, -1
        while True:
            try:
                await self._read()
                break
            except (nats.errors.Error, TimeoutError) as error:
                tries = tries + 1 if self.dataset.last == before else 0
                before = self.dataset.last
                if tries >= PATIENCE:
                    sys.exit(f"no message could be read for {tries} attempts: {error!r}")
                await _say(error)
                await asyncio.sleep(1)
        await self.nats.close()

    async def _look(self) -> None:
        """Asks for the stream's state, and whether the dataset goes with it."""
        stream = self.arguments.stream
        try:
            self.info = await self.streams.stream_info(stream)
        except NotFoundError:
            sys.exit(f"there is no stream {stream} of this account")
        state = self.info.state
        if self.end is None:
            self.end = state.last_seq if self.arguments.until == "end" else math.inf
        if self.dataset.last > state.last_seq:
            sys.exit(
                f"{self.dataset.folder} ends with message {self.dataset.last}, and stream {stream} "
                f"with {state.last_seq}: it is another one of that name; choose another dataset"
            )
        if state.first_seq > self.dataset.last + 1 and state.messages:
            gone = f"messages {self.dataset.last + 1} to {state.first_seq - 1}"
            print(f"{gone} are gone from the stream")

    async def _read(self) -> None:
        name, stream = f"ingest-{self.arguments.dataset}", self.arguments.stream
        await self._look()
        self.dataset.drop()
        self._replies, self.taken, expected = [], self.dataset.last, 1
        if self.taken >= self.end:
            return
        # A new one, so that the dataset alone says where to go on.
        with contextlib.suppress(NotFoundError):
            await self.streams.delete_consumer(stream, name)
        await self.streams.add_consumer(
            stream,
            durable_name=name,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.taken + 1,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=3600,
            max_ack_pending=2 * self.arguments.shard_messages + BATCH,
        )
        messages = await self.streams.pull_subscribe_bind(name, stream)
        while self.taken < self.end:
            try:
                batch = await messages.fetch(BATCH, timeout=self.arguments.flush_s)
            except nats.errors.TimeoutError:
                asked = await messages.consumer_info()
                if asked.delivered.consumer_seq >= expected:
                    raise Lost("a message did not arrive") from None
                await self._commit()
                if asked.num_pending == 0 and self.arguments.until == "end":
                    break
                continue
            for message in batch:
                # Numbers of deliveries have no gaps, as those of messages may.
                if message.metadata.sequence.consumer != expected:
                    raise Lost(f"delivery {expected} did not arrive")
                expected += 1
                await self._take(message)
        await self._commit()
        await messages.unsubscribe()

    async def _take(self, message: nats.aio.msg.Msg) -> None:
        sequence, given = message.metadata.sequence.stream, message.headers or {}
        self._replies.append(message.reply)
        if not self.taken < sequence <= self.end:
            return
        checksum = given.get("checksum", "").lower()
        if checksum and checksum != hashlib.sha256(message.data).hexdigest():
            await self._bury(sequence, message)
        else:
            suffix = given.get("ext", "")
            suffix = suffix if re.fullmatch("[a-z0-9]{1,8}", suffix) and suffix != "cls" else "bin"
            self.dataset.add(sequence, message.data, suffix, given.get("class", "unlabelled"))
        self.taken = sequence
        full = self.dataset.bytes >= self.arguments.shard_mib * 2**20
        if full or len(self._replies) >= self.arguments.shard_messages:
            await self._commit()

    async def _bury(self, sequence: int, message: nats.aio.msg.Msg) -> None:
        """Hands a message over to stream NAME-dead, once even if it is read again soon after."""
        name, like = f"{self.arguments.stream}-dead", self.info.config
        await self.streams.add_stream(
            name=name, subjects=[name], num_replicas=like.num_replicas, max_age=like.max_age
        )
        origin = {
            "Nats-Msg-Id": str(sequence),
            "sequence": str(sequence),
            "subject": message.subject,
        }
        await self.streams.publish(name, message.data, headers={**message.headers, **origin})
        self.dead += 1
        print(f"message {sequence} has a wrong checksum and is in stream {name}")

    async def _commit(self) -> None:
        if self.taken > self.dataset.last:
            before = self.dataset.told["images"]
            self.dataset.commit(self.taken)
            self.messages += self.dataset.told["images"] - before
            print(f"message {self.taken}, {len(self.dataset.told['shards'])} shards", flush=True)
        for reply in self._replies:
            await self.nats.publish(reply, b"+ACK")
        self._replies = []
        await self.nats.flush()


async def _say(error: Exception) -> None:
    print(f"{type(error).__name__}: {error}", flush=True)

"""Compares the answers in a stream with the digits that were published: answers.py STREAM."""

import asyncio
import json
import sys

from sklearn.datasets import load_digits
from streams import connect


async def main(stream):
    nats, digits = await connect(), load_digits().target
    answers = await nats.jetstream().subscribe(stream, ordered_consumer=True)
    right = 0
    for _ in digits:
        message = await answers.next_msg(timeout=60)
        number = int(message.headers["Gpubed-Source"].rpartition(":")[2])
        right += json.loads(message.data)["outputs"][0]["data"][0] == digits[number - 1]
    print(f"{right} of {len(digits)} digits are right ({right / len(digits):.1%})")
    await nats.close()


asyncio.run(main(sys.argv[1]))

"""Compares the answers in a stream with the digits that were published: answers.py STREAM."""

import asyncio
import json
import sys

from sklearn.datasets import load_digits
from streams import connect


async def main(stream):
    nats, digits = await connect(), load_digits().target
    from nats.js.errors import NotFoundError

    right = 0
    try:
        answers = await nats.jetstream().subscribe(stream, ordered_consumer=True)
        for _ in digits:
            message = await answers.next_msg(timeout=60)
            number = int(message.headers["Gpubed-Source"].rpartition(":")[2])
            right += json.loads(message.data)["outputs"][0]["data"][0] == digits[number - 1]
    except NotFoundError:
        sys.exit(f"no stream {stream}: gpubed serve CLUSTER digits@2 --from images --to {stream}")
    except TimeoutError:
        sys.exit("no further answer within 60 s: gpubed serve CLUSTER --status says why")
    print(f"{right} of {len(digits)} digits are right ({right / len(digits):.1%})")
    await nats.close()


asyncio.run(main(sys.argv[1]))

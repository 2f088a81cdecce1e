"""Publishes handwritten digits to a stream, each a PNG of 8 x 8 pixels: publish.py STREAM."""

import asyncio
import hashlib
import io
import sys

from PIL import Image
from sklearn.datasets import load_digits
from streams import connect


async def main(stream):
    nats, digits = await connect(), load_digits()
    jets = nats.jetstream()
    await jets.add_stream(name=stream, subjects=[stream])
    for image, digit in zip(digits.images.astype("uint8"), digits.target, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        png = file.getvalue()
        about = {"class": str(digit), "ext": "png", "checksum": hashlib.sha256(png).hexdigest()}
        await jets.publish(stream, png, headers=about)
    print(f"{len(digits.target)} images are in stream {stream}")
    await nats.close()


asyncio.run(main(sys.argv[1]))

"""Asks the served model for the digit on an image: ask.py CLUSTER."""

import json
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

IMAGE = [
    *(0, 0, 5, 13, 9, 1, 0, 0),
    *(0, 0, 13, 15, 10, 15, 5, 0),
    *(0, 3, 15, 2, 0, 11, 8, 0),
    *(0, 4, 12, 0, 0, 8, 8, 0),
    *(0, 5, 8, 0, 0, 9, 8, 0),
    *(0, 4, 11, 0, 1, 12, 7, 0),
    *(0, 2, 14, 5, 10, 12, 0, 0),
    *(0, 0, 6, 13, 10, 0, 0, 0),
]

ask = ["gpubed", "serve", sys.argv[1], "--status", "--json"]
served = subprocess.run(ask, stdout=subprocess.PIPE, check=False)
if served.returncode:
    sys.exit(served.returncode)  # gpubed has said why
way = json.loads(served.stdout)
token = Path(way["token_file"]).read_text().strip()
question = {"inputs": [{"name": "images", "shape": [1, 64], "datatype": "FP32", "data": IMAGE}]}
request = Request(
    f"{way['url']}/models/digits/infer",
    json.dumps(question).encode(),
    {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
)
trusted = ssl.create_default_context(cafile=way["certificate"])
try:
    with urlopen(request, context=trusted) as reply:
        print("it is a", json.load(reply)["outputs"][0]["data"][0])
except OSError as error:
    sys.exit(f"digits does not answer ({error}): gpubed serve {sys.argv[1]} digits@2")

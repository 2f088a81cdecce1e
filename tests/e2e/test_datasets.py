"""From raw images to shards on every node's scratch, and storage that is measured."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]

# In the cluster's own environment, since the images are made there.
MAKE_IMAGES = """
import pathlib, sys
from PIL import Image
from sklearn.datasets import load_digits
root = pathlib.Path("/shared/datasets/raw")
digits = load_digits()
for number, (image, label) in enumerate(zip(digits.images[:60], digits.target[:60])):
    folder = root / str(label)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 15).astype("uint8")).resize((64, 48)).save(folder / f"{number}.png")
"""


@pytest.fixture(scope="module")
def images(cluster):
    """Ten classes of small images on the shared storage; scratch on every node."""
    cluster.edit(lambda spec: spec.update(storage={"scratch": {}}))
    cluster.call("up")
    cluster.node("head", "gpubed-rank python -", text=MAKE_IMAGES)
    yield
    cluster.edit(lambda spec: spec.pop("storage"))
    cluster.call("up")
    assert "absent" in cluster.node("node-1", "test -e /scratch || echo absent")


def test_images_become_shards_and_shards_reach_every_node(cluster, images):
    made = cluster.json("run", "prepare", "--set", "source=raw", "--set", "dataset=small",
                        "--set", "size=24")  # fmt: skip
    assert (made["metrics"]["images"], made["metrics"]["classes"]) == (60, 10)
    names = json.loads(cluster.node("head", "cat /datasets/small/dataset.json"))["shards"]
    assert len(names) == 3, "each rank packs its share"
    first = cluster.json("run", "stage", "--set", "dataset=small")["metrics"]
    assert first["copied_bytes"] == 3 * first["bytes"]
    again = cluster.json("run", "stage", "--set", "dataset=small")["metrics"]
    assert (again["copied_bytes"], again["wrong_files"]) == (0, 0)
    for node in ("node-0", "node-1", "node-2"):
        cluster.node(node, "cd /scratch/datasets/small && sha256sum -c /datasets/small/SHA256SUMS")
    listed = cluster.node("node-2", f"tar tf /scratch/datasets/small/{names[0]}").split()
    assert {name.rsplit(".", 1)[1] for name in listed} == {"jpg", "cls"}


def test_a_broken_image_fails_the_run_by_name(cluster, images):
    cluster.node("head", "echo no > /shared/datasets/raw/0/broken.png")
    failed = cluster.json("run", "prepare", "--set", "source=raw", "--set", "dataset=torn", rc=1)
    assert any("broken_images is 1" in reason for reason in failed["failures"])
    log = Path(failed["run_dir"]) / "output.log"
    assert "cannot be read as an image: /shared/datasets/raw/0/broken.png" in log.read_text()


def test_a_dataset_that_differs_from_its_manifest_is_not_kept(cluster, images):
    cluster.node("head", "cp -r /shared/datasets/small /shared/datasets/torn2"
                         " && echo x >> /shared/datasets/torn2/dataset.json")  # fmt: skip
    failed = cluster.json("run", "stage", "--set", "dataset=torn2", rc=1)
    assert failed["metrics"]["wrong_files"] == 3
    cluster.node("node-1", "test ! -e /scratch/datasets/torn2")


def test_storage_that_is_slower_than_expected_fails_verify(cluster, images):
    expect = {"read": "1 Mbit/s", "write": "900 Gbit/s", "latency": "10 s"}
    cluster.edit(lambda spec: spec["storage"].update(shared={"expect": expect}))
    said = cluster.call("up", rc=1).stderr
    assert "storage.write node-0: the shared storage is slower" in said
    cluster.edit(lambda spec: spec["storage"]["shared"]["expect"].update(write="1 Mbit/s"))
    checks = cluster.json("up")["verification"]["checks"]
    measured = {c["id"]: c for c in checks if c["node"] == "node-2" and "storage." in c["id"]}
    assert {"storage.read", "storage.write", "storage.latency"} <= set(measured)
    assert all(c["result"] == "pass" and c["value"] > 0 for c in measured.values() if c["unit"])

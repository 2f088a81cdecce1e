"""Folders of real images, as job prepare packs them and job imagenet reads them.

Horovod is a STAND-IN, with one rank.
"""

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from support import by_path

pytestmark = pytest.mark.process

JOBS = Path(__file__).parents[2] / "jobs"
HOROVOD = """
def init(): pass
def shutdown(): pass
def barrier(): pass
def rank(): return 0
def size(): return 1
def allgather_object(one): return [one]
"""
ORIENTATION, ROTATED = 0x0112, 6


@pytest.fixture
def pictures():
    return by_path.load(JOBS / "imagenet/pictures.py", "pictures_of_a_folder")


@pytest.fixture
def prepare(tmp_path):
    """Run the job on `raw`; returns its exit code, what it said, and the dataset's folder."""
    (tmp_path / "lib/horovod").mkdir(parents=True)
    (tmp_path / "lib/horovod/__init__.py").touch()
    (tmp_path / "lib/horovod/torch.py").write_text(HOROVOD)

    def run():
        words = ("--source", "raw", "--dataset", "made", "--out", tmp_path)
        done = subprocess.run(
            (sys.executable, "-B", JOBS / "prepare/main.py", *words),
            env={**os.environ, "GPUBED_SHARED": tmp_path, "PYTHONPATH": tmp_path / "lib"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, tmp_path / "datasets/made"

    return run


@pytest.fixture
def raw(tmp_path):
    """A function that writes an image below `raw`."""

    def write(name, image=None, **how):
        path = tmp_path / "datasets/raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (image or Image.new("RGB", (8, 6), "red")).save(path, **how)
        return path

    return write


def grey(mode, values):
    """An image of a row of values, as bytes of so many bits."""
    form = {"I;16": "<H", "I;16B": ">H", "I": "<i", "F": "<f"}[mode]
    content = b"".join(struct.pack(form, value) for value in values)
    return Image.frombytes(mode, (len(values), 1), content)


def levels(image):
    return [image.getpixel((x, 0)) for x in range(image.width)]


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "png"), ("I;16", "tif"), ("I;16B", "tif")])
def test_grey_of_16_bits_is_scaled(pictures, raw, mode, kind):
    path = raw(f"a/1.{kind}", grey(mode, [0, 256, 32768, 65535]))
    assert levels(pictures.rgb(path)) == [(0,) * 3, (1,) * 3, (128,) * 3, (255,) * 3]
    assert levels(pictures.rgb(io.BytesIO(path.read_bytes())))[2] == (128,) * 3


@pytest.mark.parametrize("mode", ["I", "F"])
def test_grey_without_a_scale_is_refused_with_the_files_name(raw, prepare, mode):
    raw("a/1.png")
    path = raw("a/2.tif", grey(mode, [0, 1, 2, 3]))
    code, said, made = prepare()
    assert f"cannot be read as an image: {path}: its grey values have 32 bits" in said
    assert json.loads((made.parents[1] / "metrics.json").read_text())["broken_images"] == 1
    assert code == 0, "the job's sanity fails the run"


@pytest.mark.parametrize("kind", ["jpg", "tif"])
def test_an_image_is_turned_as_its_camera_was_held(pictures, raw, kind):
    image = Image.new("RGB", (40, 20), "white")
    image.paste((0, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[ORIENTATION] = ROTATED
    turned = pictures.rgb(raw(f"a/1.{kind}", image, exif=exif))
    assert turned.size == (20, 40)
    assert turned.getpixel((10, 5))[0] < 30, "its left is above now"
    assert turned.getpixel((10, 35))[0] > 220


def packed(folder):
    """The classes of a prepared folder, and how many images each has."""
    classes = json.loads((folder / "dataset.json").read_text())["classes"]
    found = dict.fromkeys(classes, 0)
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as shard:
            for name in shard.getnames():
                if name.endswith(".cls"):
                    found[classes[int(shard.extractfile(name).read())]] += 1
    return found


def test_parts_of_a_dataset_are_no_classes(raw, prepare, tmp_path):
    for part, count in (("train", 3), ("val", 2), ("test", 1)):
        for number in range(count):
            for name in ("cat", "dog"):
                raw(f"{part}/{name}/{number}.png")
    code, said, made = prepare()
    assert code == 0, said
    assert packed(made / "train") == {"cat": 3, "dog": 3}
    assert packed(made / "val") == {"cat": 2, "dog": 2}
    assert packed(made / "test") == {"cat": 1, "dog": 1}
    assert json.loads((tmp_path / "metrics.json").read_text())["images"] == 12
    subprocess.run(("sha256sum", "--check", "--strict", "SHA256SUMS"), cwd=made, check=True)
    sums = (made / "SHA256SUMS").read_text().splitlines()
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert {line[66:] for line in sums} == files - {"SHA256SUMS"}


@pytest.mark.parametrize("names", [["1.png", "2.png"], ["a/notes.txt"]])
def test_a_folder_without_classes_is_refused_and_leaves_nothing(raw, prepare, tmp_path, names):
    for name in names:
        raw(f"{name}.png").rename(tmp_path / "datasets/raw" / name)
    code, said, made = prepare()
    assert code == 1
    assert "raw has no image in a folder per class" in said
    assert "Traceback" not in said
    assert [path.name for path in made.parent.iterdir()] == ["raw"]

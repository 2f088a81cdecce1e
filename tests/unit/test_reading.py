"""One way in: what is refused, what is said of it, and that nothing else depends on the bytes."""

import base64
import gzip
import hashlib
import json
import os
import shutil
import tracemalloc

import pytest
from pydantic import BaseModel

from gpubed.backends.gpulab.parcel import Damaged, Parcel
from gpubed.core import reading
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.events import DamagedState
from gpubed.nodes import allocation, ssh
from support.samples import sample_allocation, sample_plan


class Thing(BaseModel):
    name: str
    password: int = 0


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "device", "large"])
def test_what_is_not_a_file_is_refused_by_name(tmp_path, kind):
    path = tmp_path / "document"
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "loop": lambda: path.symlink_to(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "large": lambda: path.write_bytes(bytes(101)),
    }
    make[kind]()
    with pytest.raises(Unreadable, match="document cannot be read: ") as refused:
        reading.file(path, "repair it", limit=100)
    assert refused.value.hint == "repair it"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b'{"name": ', "Invalid JSON"),
        (b'{"name": "\xff"}', "Invalid JSON"),
        (b'{"name": "\\ud800"}', "Invalid JSON"),
        (b"[" * 5000, "recursion limit"),
        (b"[" + b"1," * 2_000_000 + b"1]", "more than 1048576 values"),
        (b"[]", "must be a mapping"),
        (b'{"password": 7}', "name: is missing"),
        (b"[" + b"[]," * 200 + b"1]", "must be a mapping"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(data, says):
    with pytest.raises(Unreadable, match=f"^it cannot be read: .*{says}"):
        reading.reply(data, "it").json(Thing)


def test_values_are_never_shown():
    with pytest.raises(Unreadable) as refused:
        reading.reply(b'{"name": "x", "password": "hunter2"}', "it").json(Thing)
    assert "hunter2" not in str(refused.value)


def test_yaml_is_refused_with_its_line():
    with pytest.raises(Unreadable, match="it cannot be read: line 3: password"):
        reading.reply("name: x\n\npassword: secret\n", "it").yaml(Thing)
    with pytest.raises(Unreadable, match=r"line 2: .* twice"):
        reading.reply("name: x\nname: y\n", "it").yaml(Thing)


def test_what_expands_beyond_its_limit_is_refused_before_it_does():
    bomb = gzip.compress(bytes(64 * 2**20))
    tracemalloc.start()
    with pytest.raises(Unreadable, match="larger than 1 MiB"):
        reading.reply(bomb, "it", limit=2**20).inflated()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20
    with pytest.raises(Unreadable, match="cut off"):
        reading.reply(gzip.compress(b"x" * 99)[:-9], "it").inflated()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b'{"cluster": "\xff"}', "Invalid JSON"),
        (b'{"version": 2}', "another version of gpubed wrote it"),
    ],
)
def test_an_allocation_says_what_is_wrong_with_it(tmp_path, data, says):
    path = tmp_path / "lab" / "allocation.json"
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(Unreadable, match=says) as refused:
        allocation.load(path)
    assert str(path) in refused.value.message
    assert refused.value.hint == "gpubed up lab"
    path.write_text(sample_allocation(sample_plan()).model_dump_json())
    assert allocation.load(path).cluster == "lab"


def state(resources):
    return json.dumps({"version": 3, "checkpoint": {"latest": {"resources": resources}}})


@pytest.mark.parametrize(
    "damaged",
    ["", "{", '{"version": 3}', '{"version": 3, "checkpoint": 7}', state([7]), state([{"urn": 7}])],
)
def test_following_the_hint_brings_back_the_newest_state_that_is_whole(tmp_path, damaged):
    file = StackFile(tmp_path, "p", "lab")
    for _ in range(2):
        file.write(state([]))
        file.keep()
    file.write('{"version": 3, "checkpoint": ')
    file.path.write_text(damaged)
    hints = []
    while (error := refusal(file)) and error.hint not in hints:
        assert f"the state {file.path} cannot be read: " in error.message
        hints.append(error.hint)
        copy, source, target, *_ = error.hint.split()
        assert copy == "cp"
        shutil.copy(source, target)
    assert file.read() == {"latest": {"resources": []}}
    assert hints


def refusal(file):
    try:
        file.read()
    except DamagedState as error:
        return error
    return None


def test_a_parcel_that_expands_without_measure_is_refused(tmp_path):
    content = gzip.compress(bytes(64 * 2**20))
    facts = {"exit_code": 0, "left": [], "sha256": hashlib.sha256(content).hexdigest()}
    parts = [base64.b64encode(part).decode() for part in (content, json.dumps(facts).encode())]
    text = parts[0]
    lines = [*(text[i : i + 3000] for i in range(0, len(text), 3000)), parts[1]]
    parcel = Parcel("m")
    assert all(parcel.takes(f"m:{n}/{len(lines)}:{x}") for n, x in enumerate(lines, start=1))
    with pytest.raises(Damaged, match="larger than 16 MiB"):
        parcel.unpack(tmp_path)


def test_a_command_that_prints_without_end_fills_no_memory():
    left = [b"x" * 65536] * 1000
    kept = []
    ssh._drain(lambda _size: left.pop() if left else b"", kept)
    assert left == []
    assert sum(map(len, kept)) == ssh._LONGEST

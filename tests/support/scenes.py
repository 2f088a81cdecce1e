"""A place to play scenes: the same program on either engine, and what came of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpubed.core.errors import GpubedError
from gpubed.engines.embedded import Engine
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.state import decode
from gpubed.engines.embedded.values import Secret, reveal

PROGRAM = Path(__file__).parent / "program"
STACK = "dev"
PASSPHRASE = "scenes"


class Scenes:
    """One stack of the scenes program, played by the embedded engine or by the CLI."""

    def __init__(self, folder):
        self.project = folder / "project"
        shutil.copytree(PROGRAM, self.project)
        self.backend = folder / "backend"
        self.backend.mkdir()
        self.passphrase_file = folder / "passphrase"
        self.passphrase_file.write_text(PASSPHRASE + "\n")
        self.scene_file, self.calls_file = folder / "scene.json", folder / "calls"
        self.events_file = folder / "events"
        self.environment = {
            "SCENE": str(self.scene_file),
            "CALLS": str(self.calls_file),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.events = []

    @property
    def state_file(self):
        return self.backend / ".pulumi" / "stacks" / "scenes" / f"{STACK}.json"

    @property
    def config_file(self):
        return self.project / f"Pulumi.{STACK}.yaml"

    def engine(self, **options):
        return Engine(
            self.project,
            STACK,
            backend_dir=self.backend,
            passphrase_file=self.passphrase_file,
            worker_environment=self.environment,
            parallel=options.pop("parallel", 8),
            **options,
        )

    def command(self):
        """Returns a command that plays `up` with the embedded engine in another process."""
        code = (
            "import sys; from pathlib import Path; from gpubed.engines.embedded import Engine\n"
            "project, backend, passphrase = map(Path, sys.argv[1:])\n"
            f"Engine(project, {STACK!r}, backend_dir=backend, passphrase_file=passphrase).up()\n"
        )
        arguments = (self.project, self.backend, self.passphrase_file)
        return [sys.executable, "-c", code, *map(str, arguments)]

    def set(self, *resources, **scene):
        scene = {"resources": list(resources), **scene}
        self.scene_file.write_text(json.dumps(scene))
        self.calls_file.write_text("")
        self.events.clear()

    def up(self, *resources, **scene):
        self.set(*resources, **scene)
        return self.engine().up(self.events.append)

    def calls(self, *verbs):
        lines = [json.loads(line) for line in self.calls_file.read_text().splitlines()]
        return [f"{verb} {name}" for verb, name, _ in lines if not verbs or verb in verbs]

    def latest(self):
        if not self.state_file.exists():
            return {}
        return json.loads(self.state_file.read_text())["checkpoint"].get("latest") or {}

    def state(self):
        """Returns the resources, secrets opened, without what differs from run to run."""
        latest = self.latest()
        if not latest.get("resources"):
            return []
        salt = latest["secrets_providers"]["state"]["salt"]
        cipher = PassphraseCipher(PASSPHRASE, salt)
        states = [_normal(decode(raw, cipher)) for raw in latest["resources"]]
        return sorted(states, key=lambda s: (s["urn"], s["delete"], str(s)))

    def play(self, step, player):
        """Plays one step and returns everything about it that both engines must agree on."""
        scene = {key: value for key, value in step.items() if key != "verb"}
        self.set(*scene.pop("resources"), **scene)
        verb = step.get("verb", "up")
        ok, changes = player(self, verb)
        calls = sorted(self.calls_file.read_text().splitlines())
        if verb == "refresh":
            # The CLI asks for a diff of every resource, we only of those that changed.
            calls = [call for call in calls if not call.startswith('["diff"')]
        return {"ok": ok, "changes": changes, "calls": calls, "state": self.state()}


def by_engine(scenes, verb):
    try:
        result = getattr(scenes.engine(), verb)(scenes.events.append)
    except GpubedError:
        return False, None
    return True, dict(result.changes)


def by_cli(scenes, verb):
    environment = {
        **os.environ,
        **scenes.environment,
        "PULUMI_BACKEND_URL": f"file://{scenes.backend}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(scenes.passphrase_file),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Else it looks for plugins of packages that are installed, which no scene uses.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        # Only then is there an event log, which counts steps as the summary does.
        "PULUMI_DEBUG_COMMANDS": "true",
        "PULUMI_HOME": str(scenes.backend / "home"),
        "PULUMI_PYTHON_CMD": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def pulumi(*arguments):
        return subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "-s", STACK, "--color", "never"],
            cwd=scenes.project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    if not scenes.state_file.exists():
        init = pulumi("stack", "init")
        assert init.returncode == 0, init.stderr
    scenes.events_file.unlink(missing_ok=True)
    flags = [] if verb == "preview" else ["--yes", "--skip-preview"]
    done = pulumi(verb, *flags, "--event-log", str(scenes.events_file))
    scenes.output = done.stdout + done.stderr
    assert scenes.events_file.exists(), scenes.output
    if done.returncode:
        return False, None
    events = [json.loads(line) for line in scenes.events_file.read_text().splitlines()]
    summary = next(event["summaryEvent"] for event in events if "summaryEvent" in event)
    return True, summary["resourceChanges"]


def _normal(state):
    if "/../" in state.source_position:
        # Where the SDK is installed is no concern of ours.
        state.source_position = ""
    bag = {
        "urn": state.urn,
        "delete": state.delete,
        "custom": state.custom,
        "id": "UUID" if state.type.startswith("pulumi:providers:") else state.id,
        "inputs": _open(state.inputs),
        "outputs": _open(state.outputs),
        "parent": state.parent,
        "provider": state.provider_urn,
        "dependencies": sorted(state.dependencies),
        "propertyDependencies": {
            # A refresh by the CLI drops the empty lists, ours keeps them.
            k: sorted(v)
            for k, v in state.property_dependencies.items()
            if v
        },
        "retainOnDelete": state.retain_on_delete,
        "pendingReplacement": state.pending_replacement,
        "additionalSecretOutputs": state.additional_secret_outputs,
        "dated": [bool(state.created), bool(state.modified)],
        "position": state.source_position.partition("#")[0],
    }
    return {key: value for key, value in bag.items() if value or key in ("urn", "delete", "custom")}


def _open(value):
    if isinstance(value, Secret):
        return {"secret": _open(value.value)}
    if isinstance(value, dict):
        return {k: "…" if k == "__provider" else _open(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_open(item) for item in value]
    return reveal(value, show_secrets=True)

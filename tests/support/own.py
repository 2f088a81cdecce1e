"""Nodes of a bare local cluster as somebody's own hosts."""

import json
import subprocess


def let_all_in(ids):
    """Lift the list of accounts in sshd's settings: few owners have one, as local nodes do."""
    for id_ in ids:
        script = "sed -i /AllowUsers/d /etc/ssh/sshd_config.d/*.conf; systemctl reload ssh"
        subprocess.run(["docker", "exec", id_, "sh", "-ec", script], check=True)


def backend(ground, folder, group):
    """Return the static backend's options for the nodes of a bare cluster."""
    nodes = json.loads((ground.state / "allocation.json").read_text())["nodes"]
    known = folder / "known_hosts"
    with known.open("w") as file:
        for node in nodes:
            file.writelines(f"{node['control_address']} {key}\n" for key in node["host_keys"])
    let_all_in(node["id"] for node in nodes)
    gates = [{"address": n["control_address"]} for n in nodes if n["group"] == "gate"]
    return {
        "type": "static",
        "user": "gpubed",
        "key": str(ground.state / "secrets" / "id_ed25519"),
        "known_hosts": str(known),
        **({"bastions": gates} if gates else {}),
        "hosts": {
            group: [
                {"address": n["control_address"], "experiment_address": n["experiment_address"]}
                for n in nodes
                if n["group"] != "gate"
            ]
        },
    }

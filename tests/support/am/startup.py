"""What a request wants to be run at boot, as Emulab turns it into a script."""

import shlex

from .request import tag


def script(node):
    """Returns the script for a node's `execute` services; empty without any.

    One command is run as it is. Of several each is put between double quotes, so that
    quotes within break, as on Emulab. Logs and states are in /var/tmp.
    """
    commands = [
        (execute.get("shell", "sh"), execute.get("command"))
        for execute in node.findall(f"{tag('services')}/{tag('execute')}")
        if not execute.prefix
    ]
    several = len(commands) > 1
    lines = []
    for number, (shell, command) in enumerate(commands, 1):
        quoted = f'"{command}"' if several else shlex.quote(command)
        place = f"/var/tmp/startup-{number}"
        lines.append(f"{shell} -c {quoted} > {place}.txt 2>&1; echo $? > {place}.status")
    return "".join(f"{line}\n" for line in lines)

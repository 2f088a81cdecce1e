"""What README, tutorial and how-to pages tell to type is there: verbs, options, files, targets.

That it also does what they say is for `make test-nightly PARTS=walk`; here it is only counted
that each block is walked there, by another test, or has a reason why nobody does.
"""

import re
import shlex

import pytest
import typer.main

from gpubed import cli
from gpubed.configuration import roles
from gpubed.jobs import jobfile
from support import blocks
from support.cluster import ROOT

OPTIONS = {"yaml", "edit", "before", "type", "through", "interrupt", "refused", "ends"}
OPTIONS |= {"example", "once"}
ELSEWHERE = {"by", "skip"}
BLOCKS = [block for page in blocks.PAGES for block in blocks.blocks(page)]
COMMANDS = [(block, command) for block in BLOCKS for command in block.commands]
TABLE = blocks.table()
ENTRIES = [(page, words, how) for page, entries in TABLE.items() for words, how in entries]
VERBS = typer.main.get_group(cli.build())
# Commands of a page that stand within a sentence.
INLINE = [
    (page, words)
    for page in blocks.PAGES
    for words in re.findall(r"(?<!`)`(gpubed [^`\n]*)`", (ROOT / page).read_text())
]


def pieces(line):
    """Yield the commands of a line: what stands between pipes and the like, and in $(…)."""
    for part in re.split(r"&&|\|\||[|;]|\$\(|\)", line):
        try:
            words = shlex.split(part)
        except ValueError:
            continue  # a quoted text was cut: it is no command of ours
        if words:
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def parse(words):
    """Let the command line itself read them, as far as that goes without doing anything."""
    group, name = VERBS, words[0]
    assert name in group.commands, f"there is no verb {name}"
    verb, rest = group.commands[name], list(words[1:])
    if hasattr(verb, "commands"):
        assert rest[0] in verb.commands, f"there is no verb {name} {rest[0]}"
        verb, rest = verb.commands[rest[0]], rest[1:]
    context = verb.context_class(verb, info_name=name)
    verb.make_parser(context).parse_args(args=rest)


def test_no_block_is_passed_over():
    for page in blocks.PAGES:
        there = [block.commands[0].words for block in blocks.blocks(page)]
        assert [words for words, _ in TABLE.get(page, ())] == there, f"{page}: see {blocks.TABLE}"
    assert set(TABLE) <= set(blocks.PAGES)


@pytest.mark.parametrize(("page", "words", "how"), ENTRIES)
def test_an_entry_says_how_or_why_not(page, words, how):
    elsewhere = ELSEWHERE & set(how)
    assert set(how) <= (ELSEWHERE if elsewhere else OPTIONS)
    assert len(elsewhere) < 2
    if "by" in how:
        text = (ROOT / how["by"]).read_text()
        whole = page != "docs/how-to/README.md" and "first-gpu" not in page
        assert page.rsplit("/", 1)[-1] in text or not whole
    block = next(b for b in blocks.blocks(page) if b.commands[0].words == words)
    assert block.above or "yaml" not in how
    assert set(how.get("ends", ())) <= {command.words for command in block.commands}


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=str)
def test_what_a_command_names_exists(block, command):
    for name, *words in pieces(command.words):
        if name == "gpubed":
            parse(words)
            own = "--" in words or "--resume" in words  # a command, not a job
            if words[0] == "run" and "pi" not in words and not own:
                assert words[2] in jobfile.names()
        if name == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
        if name == "python":
            assert (ROOT / "src" / words[1].replace(".", "/")).with_suffix(".py").exists()
        for word in words:
            if word.startswith(("playbooks/", "inventories/lab", "jobs/")):
                assert (ROOT / word).exists(), word
        for tags in re.findall(r"--tags (\S+)", command.words):
            assert set(tags.split(",")) <= set(roles.names())


@pytest.mark.parametrize(("page", "words"), INLINE)
def test_a_command_within_a_sentence_exists(page, words):
    parse([word for word in shlex.split(words)[1:] if word != "…"])

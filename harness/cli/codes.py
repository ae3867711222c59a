"""Every error of the command line by its code: `harness explain H101` prints its row.

A code never changes its meaning. H0xx: what was typed; H1xx: runs; H2xx: nodes and networks;
H3xx: files and processes; H9xx: our own fault.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Code(NamedTuple):
    """What it means in one sentence, what it comes from, what to do."""

    title: str
    cause: str
    remedy: str


USAGE = "H001"
INTERNAL = "H900"
CODES: Mapping[str, Code] = {
    "H001": Code(
        "The command line asks for something that cannot be.",
        "An option or a command that does not exist, a value it cannot have, or two options that "
        "exclude each other.",
        "The line under the error tells what is meant; `harness COMMAND --help` shows what there "
        "is. Options of a script go after the script.",
    ),
    "H002": Code(
        "A setting is wrong, wherever it was given.",
        "A key that does not exist or a value of the wrong kind, on the command line, in a "
        "variable HARNESS_..., in harness.toml or pyproject.toml, or in the user's own file.",
        "The error begins with the place. `harness config validate` lists all that is wrong, "
        "`harness config show --origin` where each value comes from.",
    ),
    "H003": Code(
        "The script cannot be run.",
        "It is not there, cannot be read, is a directory, does not compile, or is no module.",
        "Look at the path, from the folder that the command is typed in; `python SCRIPT` fails "
        "the same way. A program that is not Python wants --no-python.",
    ),
    "H004": Code(
        "Words that choose ranks, lines or attempts are not understood, or choose nothing.",
        "A term such as `dp=3` or `state=hung` with a name or a value that this run does not "
        "have, a range that is none, or a regular expression that is none.",
        "`harness status` shows the axes, ranks and states of a run; docs/tui.md has the terms.",
    ),
    "H005": Code(
        "A fault or a plan of faults cannot be carried out as written.",
        "A kind, parameter, rank, coordinate or moment that does not exist.",
        "`harness chaos list` names the kinds, `harness chaos explain KIND` its parameters; "
        "--dry-run tries a fault without doing harm.",
    ),
    "H006": Code(
        "A training that is planned cannot be.",
        "A model or GPU of an unknown name, axes that do not divide it, or too little memory.",
        "Give other axes, more GPUs or a smaller batch; without --tp and --pp `harness plan` "
        "chooses itself.",
    ),
    "H007": Code(
        "There is no place for the screen.",
        "`harness tui` was started without a terminal, or its page cannot be served.",
        "Without a terminal use `harness status`, `harness logs -f` or `harness report`.",
    ),
    "H101": Code(
        "There is no such run.",
        "A name that no folder in the runs directory has, or a directory without a journal.",
        "The error lists the runs that are there. Runs are looked for in ./runs, --runs-dir or "
        "HARNESS_RUNS_DIR.",
    ),
    "H102": Code(
        "The run has nothing of the kind: not yet, no more, or it never had.",
        "It has just started, is over, or had no such attempt or incident.",
        "`harness status` tells how far it is, `harness report` what it had.",
    ),
    "H103": Code(
        "The run's controller refused.",
        "What was asked for makes no sense now, or was not allowed when the run was started.",
        "The reason stands in the error. Faults want a run that was started with --chaos-allowed.",
    ),
    "H104": Code(
        "What was asked for lies on another machine.",
        "A run was given as HOST:PORT: its controller answers, but its files are not here.",
        "Type the command on the head node, or make a file there with `harness bundle`.",
    ),
    "H201": Code(
        "Nodes, ranks or ports cannot be had as asked for.",
        "More GPUs than there are, a port that is in use, a host without an address, nodes that "
        "do not add up.",
        "`harness doctor` looks at ports, names and limits of this machine; docs/howto/nodes.md "
        "shows how nodes meet.",
    ),
    "H202": Code(
        "A token or a certificate is missing, or does not fit.",
        "Beyond loopback a run wants a token, and a certificate where it encrypts.",
        "Give every node and every view the same HARNESS_TOKEN or --token-file; see "
        "docs/security.md.",
    ),
    "H203": Code(
        "A node, its controller or the rendezvous is lost, or was never reached.",
        "A machine or a process died, a network or a firewall is between, or the address is wrong.",
        "See whether the head runs and its port can be reached from here; the controller's own "
        "words are in RUN/controller.log.",
    ),
    "H301": Code(
        "A run's journal cannot be read or written.",
        "A damaged or foreign file, a full disk, or a newer version of Harness has written it.",
        "The error names file and line; all other lines are sound. Commands that only read leave "
        "damaged lines out.",
    ),
    "H302": Code(
        "A file is no bundle of a run, or is damaged.",
        "It was cut while it was copied, or is something else.",
        "Have it made again: `harness bundle RUN`.",
    ),
    "H303": Code(
        "A file or a folder cannot be written.",
        "Permissions, a full disk, or a folder that is not there.",
        "Give another place with --out or --runs-dir.",
    ),
    "H304": Code(
        "Flight records cannot be read.",
        "The folder holds no dumps, or none in a form that is known.",
        "Give the folder with one dump per rank, pickles or JSON; see docs/analyze.md.",
    ),
    "H305": Code(
        "A checkpoint, or the folder of them, is not what it should be.",
        "The folder is not there, or has no checkpoint of that step. Of `harness ckpt save`: "
        "nothing in the script can save, the save failed, or the ranks ended before it.",
        "`harness ckpt ls DIR` lists what is there, `harness ckpt verify DIR` what is sound. A "
        "script that calls Checkpointer.maybe_save after each step can be asked to save.",
    ),
    "H306": Code(
        "These processes cannot be looked at.",
        "There is no such process, none of its children is a rank, or they are another user's.",
        "Give the pid of torchrun or of its ranks, as the user who started them; `harness doctor` "
        "tells whether stacks can be taken.",
    ),
    "H900": Code(
        "A fault of Harness itself.",
        "Something happened that should not be possible.",
        "Please report it with the file that the error names; --debug shows the traceback.",
    ),
}


def text(code: str) -> str:
    """The page of a code, Markdown."""
    row = CODES[code]
    return (
        f"# {code}\n\n{row.title}\n\n## Where it comes from\n\n{row.cause}\n\n"
        f"## What to do\n\n{row.remedy}\n"
    )

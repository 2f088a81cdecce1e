"""Shell scripts that follow and cancel a job of Slurm, and write its output to one file."""

from __future__ import annotations

import shlex

OUTPUT = "slurm.log"
CANCELLED = ".cancelled"
"""The file in a run's folder by which a job that was not submitted in time never starts."""
FINAL = "ended: JobState="
"""Before the state in which a job ended, in a line of the script that follows it."""
# slurmctld may be restarting, so repeat until it reports an empty queue, or the time is up.
_CANCEL = (
    f"cd {{folder}} && {{lock}}touch {CANCELLED}; end=$(($(date +%s) + {{patience}})); "
    "until scancel --name={name}; queue=$(squeue --noheader --name={name}) && "
    '[ -z "$queue" ]; do [ $(date +%s) -lt $end ] || exit 1; sleep 0.5; done'
)
# How many seconds Slurm may give no answer about a job, and the states of jobs that have ended
# (squeue(1), job state codes).
_PATIENCE_S = 600
_ENDS = (
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "REVOKED TIMEOUT"
)
# slurmctld forgets a job minutes after its end; the accounting has it then. A queued job's reason
# to wait is printed. The sleep at the end waits for output that arrives after the job's end.
_FOLLOW = rf"""
ask() {{{{
  told=$(scontrol --oneliner show job {{job}} 2>&1) && return
  case $told in *"Invalid job id"*) ;; *) return 1 ;; esac
  told=$(sacct --noheader --parsable2 --allocations --jobs={{job}} --format=State,ExitCode |
    sed -E 's/^([A-Z_]+)[^|]*[|]/JobState=\1 ExitCode=/')
  [ "$told" ]
}}}}
cd {{folder}} && touch {OUTPUT} || exit 1
tail --lines={{lines}} --follow {OUTPUT} & tail=$!
heard=$(date +%s)
while :; do
  if ask; then
    state=$(echo "$told" | grep -Eo 'JobState=[A-Z_]+' | cut -d = -f 2)
    [ ! "$silent" ] || echo "slurm: answers again, job {{job}} is $state"
    heard=$(date +%s) silent=
    case " {_ENDS} " in *" $state "*) break ;; esac
    why="$state ($(echo "$told" | grep -Eo 'Reason=[^ ]+' | cut -d = -f 2))"
    [ "$why" = "$last" ] || case $state in PENDING) echo "slurm: job {{job}} is $why" ;; esac
    last=$why
  elif [ $(($(date +%s) - heard)) -ge {{patience}} ]; then
    kill $tail
    echo "slurm: no answer for {{patience}} s: job {{job}} may go on and hold its nodes." \
      "Where Slurm's commands are, once it answers: squeue --jobs={{job}}; scancel {{job}}"
    exit 1
  elif [ ! "$silent" ]; then
    echo "slurm: no answer about job {{job}}, asking on for up to {{patience}} s: $told"
    silent=yes
  fi
  sleep {{every}}
done
sleep {{every}}
kill $tail
[ $state != COMPLETED ] || exit 0
echo "slurm: job {{job}} ended:" $(echo "$told" | grep -Eo '(JobState|Reason|ExitCode)=[^ ]+')
code=$(echo "$told" | sed -E 's/.*ExitCode=([0-9]+):.*/\1/')
exit $((code ? code : 1))
"""


def follow(folder: str, job: str, every_s: int = 1, lines: str = "+1") -> str:
    """Return a script that prints a job's output until its end, and ends with its exit code.

    Args:
        folder: The folder of the run, with the output.
        every_s: Seconds between two questions to Slurm.
        lines: Where in the output to begin, as `tail --lines` takes it.
    """
    told = {"job": job, "every": every_s, "lines": lines, "patience": _PATIENCE_S}
    return _FOLLOW.format(folder=shlex.quote(folder), **told)


def cancel(folder: str, name: str, patience_s: int, lock: str = "") -> str:
    """Return a script that cancels the jobs of a name, and fails if some are left in the queue.

    `lock` is the beginning of a command that holds a lock.
    """
    return _CANCEL.format(folder=shlex.quote(folder), name=name, patience=patience_s, lock=lock)

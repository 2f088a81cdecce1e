# Prints a job's output until its end, and ends with its exit code:
#   FOLDER JOB EVERY LINES PATIENCE
# The folder has the output; LINES is where in it to begin, as `tail --lines` takes it. EVERY is how
# many seconds lie between two questions, PATIENCE for how many Slurm may give no answer.
folder=$1 job=$2 every=$3 lines=$4 patience=$5 output=slurm.log
# States of jobs that have ended (squeue(1), job state codes).
ends="BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY"
ends=" $ends PREEMPTED REVOKED TIMEOUT "
# slurmctld forgets a job minutes after its end; the accounting has it then.
ask() {
  told=$(scontrol --oneliner show job "$job" 2>&1) && return
  case $told in *"Invalid job id"*) ;; *) return 1 ;; esac
  told=$(sacct --noheader --parsable2 --allocations --jobs="$job" --format=State,ExitCode |
    sed -E 's/^([A-Z_]+)[^|]*[|]/JobState=\1 ExitCode=/')
  [ "$told" ]
}
cd "$folder" && touch $output || exit 1
tail --lines="$lines" --follow $output & tail=$!
heard=$(date +%s) silent='' last=''
while :; do
  if ask; then
    state=$(echo "$told" | grep -Eo 'JobState=[A-Z_]+' | cut -d = -f 2)
    [ ! "$silent" ] || echo "slurm: answers again, job $job is $state"
    heard=$(date +%s) silent=''
    case $ends in *" $state "*) break ;; esac
    # A queued job's reason to wait is printed.
    why="$state ($(echo "$told" | grep -Eo 'Reason=[^ ]+' | cut -d = -f 2))"
    [ "$why" = "$last" ] || case $state in PENDING) echo "slurm: job $job is $why" ;; esac
    last=$why
  elif [ $(($(date +%s) - heard)) -ge "$patience" ]; then
    kill $tail
    echo "slurm: no answer for $patience s: job $job may go on and hold its nodes." \
      "Where Slurm's commands are, once it answers: squeue --jobs=$job; scancel $job"
    exit 1
  elif [ ! "$silent" ]; then
    echo "slurm: no answer about job $job, asking on for up to $patience s: $told"
    silent=yes
  fi
  sleep "$every"
done
sleep "$every"  # output may arrive after the job's end
kill $tail
[ "$state" != COMPLETED ] || exit 0
# shellcheck disable=SC2046
echo "slurm: job $job ended:" $(echo "$told" | grep -Eo '(JobState|Reason|ExitCode)=[^ ]+')
code=$(echo "$told" | sed -E 's/.*ExitCode=([0-9]+):.*/\1/')
exit $((code ? code : 1))

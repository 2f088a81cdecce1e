#!/usr/bin/env bash
# Sets up this machine: system packages, a virtual environment from the lock
# file, a Docker daemon. Does only what is missing, so that it may run every time.
#
#   setup.sh run     what `gpubed up` needs
#   setup.sh test    also what the tests need
set -euo pipefail
cd "$(dirname "$0")"

profile=${1:-run}
lock=requirements.lock
programs=(ssh:openssh-client rsync:rsync docker:docker.io dockerd:docker.io mmdebstrap:mmdebstrap tc:iproute2)
if [ "$profile" = test ]; then
  lock=requirements-dev.lock
  programs+=(chromium:chromium)
fi

say() { printf '%s\n' "$*" >&2; }
fail() {
  say "error: $1"
  say "  → $2"
  exit 3
}

packages_missing() {
  local entry
  for entry in "${programs[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${entry%%:*}" >/dev/null || printf '%s\n' "${entry#*:}"
  done
  "$python" -c 'import ensurepip, venv' 2>/dev/null || printf '%s\n' "$venv_package"
}

find_python() {
  local name
  for name in "${GPUBED_PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$name" ] && command -v "$name" >/dev/null || continue
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
}

install_packages() {
  local missing
  missing=$(packages_missing | sort -u | tr '\n' ' ')
  [ -z "$missing" ] && return
  command -v apt-get >/dev/null || fail "these are missing: $missing" "install them, then run this again"
  if [ "$(id -u)" != 0 ]; then
    fail "these packages are missing: $missing" "sudo apt-get install --no-install-recommends $missing"
  fi
  say "installing $missing"
  local log
  log=$(mktemp)
  # shellcheck disable=SC2086  # a list of words
  if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install \
    --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "the packages could not be installed (whole output: $log)" "apt-get install $missing"
  fi
  rm -f "$log"
}

make_environment() {
  local stamp wanted
  stamp=.venv/.installed
  wanted="$(sha256sum "$lock" pyproject.toml | sha256sum) $profile"
  if [ -f "$stamp" ]; then
    # What the tests need includes what a run needs.
    [ "$(cat "$stamp")" = "$wanted" ] && return
    [ "$profile" = run ] && grep -qx "$(sha256sum requirements-dev.lock pyproject.toml | sha256sum) test" "$stamp" && return
  fi
  say "installing Python packages into .venv"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  local log
  log=$(mktemp)
  if ! { .venv/bin/python -m pip install --disable-pip-version-check --require-hashes -r "$lock" &&
    .venv/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "the Python packages could not be installed (whole output: $log)" "check the network, then run this again"
  fi
  rm -f "$log"
  # In the locale C, Python reads no path here that is not ASCII.
  printf '../../../../src\n' | tee .venv/lib/python3*/site-packages/*gpubed.pth >/dev/null
  printf '%s' "$wanted" >"$stamp"
}

# Says why Docker's answer was a refusal to a user who is not root, and what changes that.
refused_by_docker() {
  local user start="sudo systemctl start docker"
  user=$(id -un)
  [ -d /run/systemd/system ] || start="sudo dockerd, in another terminal"
  [[ $1 == *"ermission denied"* ]] || fail "no Docker daemon answers" "$start"
  if id -nG "$user" | tr ' ' '\n' | grep -qx docker; then
    fail "$user is in the group docker, but this session began before that" "log in again, or: newgrp docker"
  fi
  fail "$user may not use Docker: root may, and who is in the group docker (which is as good as root)" \
    "sudo usermod -aG docker $user, then log in again; or run this as root"
}

start_docker() {
  local said
  said=$(docker info 2>&1 >/dev/null) && return
  [ "$(id -u)" = 0 ] || refused_by_docker "$said"
  if [ -d /run/systemd/system ]; then
    systemctl start docker || fail "Docker does not start" "journalctl -u docker"
  else
    say "starting dockerd (no init system is here to do it): log in /var/log/dockerd.log"
    # Let go of everything of ours, or the caller would wait for the daemon.
    setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
  fi
  local i
  for i in $(seq 60); do
    docker info >/dev/null 2>&1 && return
    sleep 0.5
  done
  fail "dockerd does not answer after 30 s" "tail /var/log/dockerd.log"
}

python=$(find_python)
[ -n "$python" ] || fail "Python 3.11 or newer is needed; found $(python3 --version 2>&1 || echo none)" \
  "apt-get install python3 python3-venv, or set GPUBED_PYTHON to a newer one"
venv_package=python3-venv
install_packages
start_docker # before anything is downloaded that would not help without it
make_environment

#!/bin/sh
# Prepares a node of a GENI testbed for the roles. Runs now and at each boot, and is idempotent.
# Settings: /etc/gpubed/testbed.
set -eu

USER_NAME='' NAT='' EXPERIMENT_MAC='' EXPERIMENT_ADDRESS='' EXPERIMENT_MTU=''
SHARED_SOURCE='' SHARED_PATH='' EXTRA_PATH=''
[ ! -r /etc/gpubed/testbed ] || . /etc/gpubed/testbed

fail() {
    echo "$*" >&2
    exit 1
}

# Accounts of the testbed belong to their project's group, and may have a C shell.
account() {
    [ -n "$USER_NAME" ] || return 0
    getent group "$USER_NAME" >/dev/null || groupadd "$USER_NAME"
    id -nG "$USER_NAME" | tr ' ' '\n' | grep -qx "$USER_NAME" || usermod -aG "$USER_NAME" "$USER_NAME"
    case $(getent passwd "$USER_NAME" | cut -d: -f7) in
    *csh) usermod -s /bin/bash "$USER_NAME" ;;
    esac
}

# Images with a desktop suspend some time after they booted.
stay_awake() {
    systemctl --quiet mask sleep.target suspend.target hibernate.target hybrid-sleep.target
}

# IPv4 beyond the testbed goes through its NAT; the testbed's own networks stay as they are.
nat() {
    [ "$NAT" = yes ] || return 0
    before=$(ip -4 route show default | awk '{ print $3; exit }')
    case $before in
    10.2.15.254) after=10.2.15.253 ;; # wall1
    10.2.47.254) after=10.2.47.253 ;; # wall2
    172.16.0.1) after=172.16.0.2 ;;   # virtual machines
    *) return 0 ;;
    esac
    for network in 10.11.0.0/16 10.2.0.0/20 10.2.32.0/20 157.193.214.0/24 157.193.215.0/24 \
        157.193.135.0/24 192.168.126.0/24; do
        ip -4 route replace "$network" via "$before"
    done
    ip -4 route replace default via "$after"
}

# Disk images may leave most of the disk unused. Grows only into free space: removes no partition.
expand() {
    root=$(findmnt -no SOURCE / 2>/dev/null) || return 0
    case $root in /dev/*) ;; *) return 0 ;; esac
    name=$(basename "$(readlink -f "$root")")
    [ -r "/sys/class/block/$name/partition" ] || return 0
    disk=$(basename "$(readlink -f "/sys/class/block/$name/..")")
    number=$(cat "/sys/class/block/$name/partition")
    if command -v growpart >/dev/null && growpart "/dev/$disk" "$number" >/dev/null; then
        case $(findmnt -no FSTYPE /) in
        ext*) resize2fs "$root" ;;
        xfs) xfs_growfs / ;;
        esac
    fi
    say_how_small "$name" "$disk"
}

# Emulab's images have partitions behind that of /, and then it cannot grow.
say_how_small() {
    has=$(cat "/sys/class/block/$1/size") whole=$(cat "/sys/class/block/$2/size")
    [ $((has * 2)) -lt "$whole" ] || return 0
    spare=$(lsblk -lnbpo SIZE,NAME,TYPE,FSTYPE,MOUNTPOINT "/dev/$2" |
        awk '$3 == "part" && NF == 3 { print $1, $2 }' | sort -rn | awk '{ print $2; exit }')
    echo "warning: / has $((has / 2097152)) GiB of the $((whole / 2097152)) of /dev/$2 and cannot" \
        "grow over the partitions behind it${spare:+; nothing seems to be on $spare}"
}

# Emulab's own tool makes a file system of the rest of the disk, and mounts it at later boots, too.
extra_space() {
    { [ -n "$EXTRA_PATH" ] && ! mountpoint -q "$EXTRA_PATH"; } || return 0
    mkdir -p "$EXTRA_PATH"
    /usr/local/etc/emulab/mkextrafs.pl "$EXTRA_PATH" >/dev/null 2>&1 ||
        echo "warning: the rest of the disk is not mounted at $EXTRA_PATH: mkextrafs failed"
}

link_with() {
    for path in /sys/class/net/*; do
        [ "$(cat "$path/address" 2>/dev/null)" != "$1" ] || basename "$path"
    done | head -n 1
}

# Some images do not give the experiment interface its address.
experiment() {
    [ -n "$EXPERIMENT_ADDRESS" ] || return 0
    link=$(ip -o -4 address show to "${EXPERIMENT_ADDRESS%/*}" | awk '{ print $2; exit }')
    if [ -z "$link" ]; then
        [ -z "$EXPERIMENT_MAC" ] || link=$(link_with "$EXPERIMENT_MAC")
        [ -n "$link" ] || fail "no interface has the MAC address '$EXPERIMENT_MAC' of $EXPERIMENT_ADDRESS"
        ip link set "$link" up
        ip address add "$EXPERIMENT_ADDRESS" dev "$link"
    fi
    [ -z "$EXPERIMENT_MTU" ] || ip link set "$link" mtu "$EXPERIMENT_MTU"
}

# The folder that the testbed mounts everywhere, at the path of the specification.
shared() {
    [ -n "$SHARED_SOURCE" ] || return 0
    mkdir -p "$SHARED_SOURCE" "$SHARED_PATH" || fail "the shared folder $SHARED_SOURCE cannot be made"
    mountpoint -q "$SHARED_PATH" || mount --bind "$SHARED_SOURCE" "$SHARED_PATH"
}

account
stay_awake
nat
expand
extra_space
experiment
shared

#!/bin/bash
# STAND-INS, since no GPU is here and a container shares its host's kernel:
#   stand-ins.sh GPU DEVICE_ID [NVSWITCH]
# - packages with NVIDIA's names and versions, in a signed apt repository; dpkg, apt,
#   gpg and systemd are real, the programs inside only pretend;
# - the part of sysfs that tells GPUs and loaded modules, under /srv/node;
# - modprobe, modinfo and dkms, which act on that folder.
set -eu
repo=/srv/stand-ins
node=/srv/node
module=/usr/lib/stand-in/module-version
if [ -e "$repo/InRelease" ]; then exit 0; fi
mkdir -p "$repo" "$node"

pci() { # ADDRESS DEVICE CLASS
  local device=$node/sys/bus/pci/devices/$1
  mkdir -p "$device"
  echo 0x10de >"$device/vendor"
  echo "0x$2" >"$device/device"
  echo "0x${3}00" >"$device/class"
  echo 0-1 >"$device/local_cpulist"
  echo 0 >"$device/numa_node"
}
pci 0000:1b:00.0 "$2" 0302
pci 0000:43:00.0 "$2" 0302
if [ $# -gt 2 ]; then pci 0000:07:00.0 "$3" 0680; fi

program() { # FILE, text on stdin
  mkdir -p "$(dirname "$1")"
  cat >"$1"
  chmod 755 "$1"
}

program /usr/local/sbin/modprobe <<EOF
#!/bin/sh
# STAND-IN for kmod: the "kernel" is $node.
if [ "\$1" = --remove ]; then
  [ ! -e $node/sys/module/nvidia_drm/refcnt ] || { echo 'modprobe: FATAL: Module nvidia is in use.' >&2; exit 1; }
  exec rm -rf $node/sys/module/nvidia
fi
[ -e $module ] || { echo 'modprobe: FATAL: Module nvidia not found.' >&2; exit 1; }
mkdir -p $node/sys/module/nvidia
[ -e $node/sys/module/nvidia/version ] || cp $module $node/sys/module/nvidia/version
EOF
program /usr/local/sbin/modinfo <<EOF
#!/bin/sh
# STAND-IN for kmod.
[ "\$3" = nvidia ] && exec cat $module
exit 1
EOF
program /usr/local/sbin/dkms <<EOF
#!/bin/sh
# STAND-IN: "builds" what the installed source says.
[ "\$1" = autoinstall ] && exec install -D -m 644 $node/usr/src/nvidia-*/built $module
EOF
cat >/etc/systemd/system/stand-in-boot.service <<EOF
[Unit]
Description=STAND-IN for what a boot does: modules are gone, the GPU's is loaded
[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=/bin/sh -c 'rm -rf $node/sys/module/nvidia $node/sys/module/nvidia_drm; /usr/local/sbin/modprobe nvidia || true'
[Install]
WantedBy=multi-user.target
EOF
systemctl enable --quiet stand-in-boot.service

package() { # NAME VERSION FIELD...; its files are in ./root, what it runs in ./postinst
  local name=$1 version=$2
  shift 2
  mkdir -p root/DEBIAN
  {
    printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: nobody <nobody@invalid>\n' "$name" "$version"
    for field in "$@"; do printf '%s\n' "$field"; done
    printf 'Description: STAND-IN, no driver\n'
  } >root/DEBIAN/control
  if [ -e postinst ]; then install -m 755 postinst root/DEBIAN/postinst && rm postinst; fi
  dpkg-deb --root-owner-group --build root "$repo/${name}_$version.deb" >/dev/null
  rm -rf root
}
unit() { # NAME PROGRAM [ARGUMENTS]
  program "root/usr/bin/$2" <<<$'#!/bin/sh\n# STAND-IN\n[ "$1" != --user ] || id "$2" || exit 1\nexec sleep infinity'
  mkdir -p root/usr/lib/systemd/system
  printf '[Unit]\nDescription=STAND-IN\n[Service]\nExecStart=/usr/bin/%s\n[Install]\nWantedBy=multi-user.target\n' "$2${3:+ $3}" \
    >"root/usr/lib/systemd/system/$1.service"
}

cd "$(mktemp -d)"
# 580.99.99 installs, but its module was not built.
for version in 580.65.06 580.82.07 580.99.99 590.48.01; do
  for kernel in nvidia-kernel-open-dkms nvidia-kernel-dkms; do
    mkdir -p "root$node/usr/src/nvidia-$version"
    if [ $version != 580.99.99 ]; then
      echo $version | program root$module
      echo $version >"root$node/usr/src/nvidia-$version/built"
    fi
    package $kernel $version-1 'Provides: nvidia-stand-in-kernel' 'Conflicts: nvidia-stand-in-kernel'
  done
  libraries=root$node/usr/lib/x86_64-linux-gnu
  mkdir -p "$libraries"
  touch "$libraries/libnvidia-ml.so.$version"
  ln -s libnvidia-ml.so.$version "$libraries/libnvidia-ml.so.1"
  package libnvidia-ml1 $version-1
  program root/usr/bin/nvidia-smi <<EOF
#!/bin/sh
# STAND-IN: two GPUs, and NVML's refusal when module and library differ.
case "\$1" in --query-gpu=index*) ;; *) exit 0 ;; esac
if [ "\$(cat $node/sys/module/nvidia/version 2>/dev/null)" != $version ]; then
  echo 'Failed to initialize NVML: Driver/library version mismatch'
  exit 18
fi
echo '0, $1, GPU-0, 1024, $version, 00000000:1B:00.0'
echo '1, $1, GPU-1, 1024, $version, 00000000:43:00.0'
EOF
  package nvidia-driver-cuda $version-1 "Depends: libnvidia-ml1 (= $version-1)"
  unit nvidia-fabricmanager nv-fabricmanager
  # NVIDIA's names: with the branch, and without.
  if [ $version = 580.65.06 ]; then package nvidia-fabricmanager-580 $version-1; else
    package nvidia-fabricmanager $version-1 'Replaces: nvidia-fabricmanager-580' 'Conflicts: nvidia-fabricmanager-580'
  fi
done
# Debian's user, and an option of Ubuntu's.
unit nvidia-persistenced nvidia-persistenced '--user nvpd --no-persistence-mode'
echo $'#!/bin/sh\nid nvpd >/dev/null 2>&1 || useradd --system nvpd' >postinst
package nvidia-persistenced 580.65.06-1

cd "$repo"
for deb in *.deb; do
  dpkg-deb --field "$deb"
  printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$deb" "$(stat -c %s "$deb")" "$(sha256sum "$deb" | cut -d' ' -f1)"
done >Packages
printf 'Date: %s\nSHA256:\n %s %s Packages\n' "$(date -Ru)" "$(sha256sum Packages | cut -d' ' -f1)" "$(stat -c %s Packages)" >Release
GNUPGHOME=$(mktemp -d)
export GNUPGHOME
gpg --batch --quiet --passphrase '' --quick-gen-key stand-in@invalid ed25519 sign never
gpg --batch --quiet --armor --export >key.asc
gpg --batch --quiet --with-colons --list-keys | sed -n 's/^fpr:*\([0-9A-F]*\):$/\1/p' >fingerprint
gpg --batch --quiet --clearsign --output InRelease Release
gpgconf --kill all
chmod -R a+rX "$repo"

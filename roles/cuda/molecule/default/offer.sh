#!/bin/sh
# Offers STAND-INs of the packages that NVIDIA distributes as a compiler: an nvcc that knows
# its release and compiles nothing, one of them newer than the recipe's CUDA.
set -eu
archive=/var/lib/molecule
rm -rf "$archive"
mkdir -p "$archive"
cd "$archive"

# offer NAME VERSION: makes a package of the folder `root`, and a line of the archive's index.
offer() {
  mkdir -p root/DEBIAN
  printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: none <root@localhost>\nDescription: STAND-IN\n' \
    "$1" "$2" >root/DEBIAN/control
  dpkg-deb --root-owner-group --build root "$1.deb" >/dev/null
  cat root/DEBIAN/control >>Packages
  printf 'Filename: ./%s.deb\nSize: %s\nSHA256: %s\n\n' \
    "$1" "$(stat -c %s "$1.deb")" "$(sha256sum "$1.deb" | cut -d ' ' -f 1)" >>Packages
  rm -r root
}

for minor in 4 8; do
  bin=root/usr/local/cuda-12.$minor/bin
  mkdir -p "$bin"
  printf '#!/bin/sh\necho "Cuda compilation tools, release 12.%s, V12.%s.131"\n' $minor $minor >"$bin/nvcc"
  chmod 755 "$bin/nvcc"
  offer cuda-nvcc-12-$minor 12.$minor.131-1
  offer cuda-cudart-dev-12-$minor 12.$minor.127-1
done
echo "deb [trusted=yes] file:$archive ./" >/etc/apt/sources.list.d/molecule.list

# Makes a Python environment in the user's own folder: prepare.sh ROOT NAME
# The variables `pythons`, `horovod`, `sha256`, `standard` and `options` (of build_wheel.py) are set
# before. Prints, as its last line, what there is, which is also in the file .complete there.
set -eu
root=$1 target=$1/env/$2
files=$root/programs/roles/python_env/files
cd "$root"
# One at a time, where the file system has locks: an `up` that was cut off may still build here.
exec 9>.building
! command -v flock >/dev/null || flock -w 7000 9 || true
[ ! -e "$target/.complete" ] || { cat "$target/.complete"; exit; }

for python in python3 $(printf 'python%s ' $pythons) none; do
  version=$("$python" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  case " $pythons " in *" $version "*) break ;; esac
done
if [ "$python" = none ]; then
  echo "there is no Python of a version that fits, with venv: $pythons" >&2
  exit 77
fi
python=$(command -v "$python")

"$python" -m venv --clear tools
tools/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes \
  --only-binary :all: --requirement "$files/bootstrap.txt"
store=${GPUBED_WHEELS:-$root/.wheels}
tools/bin/python "$files/make_environment.py" lock requirements.txt "$store" "$target" "$python"
rm -rf "$root/.wheels"

built='' why=''
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
nvcc=$(command -v nvcc || true)
if ! command -v g++ >/dev/null || ! command -v make >/dev/null; then
  why='there is no g++, or no make'
elif [ ! -e "$headers/Python.h" ]; then
  why="there is no $headers/Python.h"
elif case $options in *--nvcc*) [ ! "$nvcc" ] ;; *) false ;; esac; then
  why='there is no nvcc'
else
  mkdir -p build
  echo "horovod==$horovod --hash=sha256:$sha256" >build/source.txt
  memory=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
  cpus=$(nproc)
  # shellcheck disable=SC2086
  if tools/bin/pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-build-isolation --no-binary horovod --require-hashes --dest build -r build/source.txt &&
    "$target/bin/python" "$root/programs/roles/horovod/files/build_wheel.py" --out build \
      --sdist "build/horovod-$horovod.tar.gz" --log build.log --cpus "$((cpus < 8 ? cpus : 8))" \
      --memory "$memory" --cxx-standard "$standard" $(echo "$options" | sed "s#NVCC#$nvcc#") &&
    tools/bin/uv pip install --quiet --offline --no-deps --no-cache \
      --python "$target/bin/python" build/horovod-*.whl; then
    built=$horovod
  else
    why="it did not build: $root/build.log"
  fi
  rm -rf build
fi
printf '{"python": "%s", "horovod": "%s", "why": "%s"}\n' "$version" "$built" "$why" \
  >"$target/.draft"
mv "$target/.draft" "$target/.complete"
cat "$target/.complete"

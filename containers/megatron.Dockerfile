# The training image: NVIDIA's PyTorch image, by digest, and Megatron Core in the version that samebits supports.
# Transformer Engine comes with the base. Nothing of samebits goes in: it is mounted.
#
#   podman build --build-arg BASE=registry.example/nvidia/pytorch@sha256:... -f containers/megatron.Dockerfile -t megatron .
#
# The digest of a tag: `samebits image lock registry.example/nvidia/pytorch:TAG`. There is no default that could be
# pulled, for a tag can change.
ARG BASE=must-be-given-by-digest
FROM ${BASE}

# An ARG before FROM is not seen after it, unless it is named again.
ARG BASE
RUN case "${BASE}" in \
      *@sha256:*) ;; \
      *) echo "BASE is '${BASE}', must be NAME@sha256:HEX: a tag can change; give --build-arg BASE=NAME@sha256:HEX" >&2; \
         exit 1 ;; \
    esac

ARG MEGATRON_CORE=0.16.1
# --no-deps: the base's own torch, numpy and Transformer Engine stay. psutil: megatron-core needs it undeclared.
RUN python3 -m pip install --no-cache-dir --no-deps "megatron-core==${MEGATRON_CORE}" \
 && { python3 -c 'import psutil' || python3 -m pip install --no-cache-dir psutil; }

LABEL org.opencontainers.image.base.name="${BASE}"

# The image exists only where these import, and in the version that was asked for.
RUN MEGATRON_CORE="${MEGATRON_CORE}" python3 -c 'import os, numpy, psutil, torch, transformer_engine, megatron.core; \
print("python modules:", *(f"{m.__name__} {m.__version__}" for m in (torch, numpy, transformer_engine, megatron.core))); \
assert megatron.core.__version__ == os.environ["MEGATRON_CORE"], "another megatron-core was imported"'

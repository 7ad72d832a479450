# The image of every node of a cluster. Choose the accelerator by an argument:
#
#   docker build --build-arg ACCELERATOR=cuda --tag registry/me/archipelago:cuda .
#
# ACCELERATOR is cpu, cuda or tpu. docs/howto/environments.md says what runs where.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

ARG ACCELERATOR=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# KubeRay calls bash and wget for its probes; procps and iproute2 are for people.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bash ca-certificates iproute2 procps wget \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY constraints.txt pyproject.toml README.md LICENSE CHANGELOG.md archipelago_launcher.py ./
COPY coordinator coordinator
COPY islands islands
COPY cluster cluster
COPY archipelago archipelago
RUN case "$ACCELERATOR" in \
        cpu) extras=orbax ;; \
        cuda|tpu) extras="orbax,$ACCELERATOR" ;; \
        *) echo "ACCELERATOR must be cpu, cuda or tpu, and is $ACCELERATOR" >&2; exit 2 ;; \
    esac \
    && pip install --constraint constraints.txt ".[$extras]" \
    && pip check

# Pods run as this user (archipelago/manifest/pods.py).
RUN useradd --uid 1000 --create-home ray
USER 1000
WORKDIR /home/ray
RUN archipelago --version && ray --version

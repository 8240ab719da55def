# An image with everything for training on NVIDIA GPUs: vLLM, torch with CUDA, and rg_env from this checkout.
#   docker build -t rg_env .
#   docker run --gpus all --shm-size 16g -v "$PWD/outputs:/rg_env/outputs" rg_env \
#       rg-env launch configs/train/leg_counting_qwen7b.yaml
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl git python3 python3-dev build-essential \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /rg_env
COPY . .
RUN ./setup.sh --gpu
ENV PATH=/rg_env/.venv/bin:$PATH
CMD ["rg-env", "--help"]

# Image for the job files of `phalanx launch --write-kubernetes` and `--write-skypilot`:
#   docker build -t REGISTRY/phalanx:0.1 . && docker push REGISTRY/phalanx:0.1
# torch's wheels bring CUDA and NCCL; the node needs NVIDIA's driver and container toolkit only.
FROM python:3.13-slim
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
COPY recipes /src/recipes
RUN pip install --no-cache-dir '/src[train,export]'
WORKDIR /data

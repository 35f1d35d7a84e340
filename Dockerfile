# The service on a volume, CPU only. Built from the wheel, not from the source tree:
#
#   make release                                    # dist/genius_search-VERSION-py3-none-any.whl
#   docker build --tag genius-search .
#   docker run --rm -v "$PWD/data:/data" -v "$PWD/photos:/photos:ro" genius-search genius index /photos -o /data/my.genius
#   docker run -p 8000:8000 -v "$PWD/data:/data" -e GENIUS_API_KEYS="read:KEY,write:KEY" genius-search
#
# The folder behind /data must be writable by user 10001. GENIUS_INDEX names another index. Without keys the service
# refuses to listen beyond the container.
# On x86-64 a plain install brings the CUDA build of torch; pass a package index with CPU builds to keep the image small:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=INDEX --tag genius-search .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt dist/*.whl /wheels/
RUN python -m venv /opt/genius \
 && wheel="$(ls /wheels/genius_search-*.whl)" \
 && /opt/genius/bin/pip install -c /wheels/constraints.txt "$wheel[serve,svg]"

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="genius-search" \
      org.opencontainers.image.description="Multimodal search by generated IDs: HTTP service" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --shell /usr/sbin/nologin genius \
 && install -d -o genius -g genius /data
COPY --from=build /opt/genius /opt/genius
ENV PATH=/opt/genius/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GENIUS_INDEX=/data/my.genius
USER genius
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
STOPSIGNAL SIGTERM
CMD ["sh", "-c", "exec genius serve \"$GENIUS_INDEX\" --host 0.0.0.0 --port 8000"]

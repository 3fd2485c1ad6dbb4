# The service alone: no embedded servers, no tools for tests. One image, one process per container:
#     docker build --tag rowclaim .        docker run rowclaim serve        docker run rowclaim consume --slice fulfillment
# Any base with Python 3.11 or newer and its venv module on glibc will do.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /rowclaim
RUN python3 -m venv /rowclaim/.venv
# The requirements before the code: a change of code reuses this layer.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir services schemas \
    && .venv/bin/pip install --no-cache-dir --only-binary :all: --constraint constraints.txt --editable .
COPY services services
COPY schemas schemas
COPY migrations migrations
# Again with the packages in place, so that the entry point finds them.
RUN .venv/bin/pip install --no-cache-dir --no-deps --editable . && .venv/bin/rowclaim --help >/dev/null

FROM ${BASE}
RUN useradd --system --no-create-home --shell /usr/sbin/nologin rowclaim
COPY --from=build /rowclaim /rowclaim
WORKDIR /rowclaim
USER rowclaim
# A container's loopback is seen by nobody else.
ENV ROWCLAIM_HTTP_HOST=0.0.0.0
# Orderly stop: a worker finishes the attempt in hand, which takes up to 45 s; kill no earlier than after 60 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/rowclaim/.venv/bin/rowclaim"]
CMD ["--help"]

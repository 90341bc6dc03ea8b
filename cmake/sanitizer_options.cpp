// SPDX-License-Identifier: Apache-2.0
// The sanitizers' settings, linked into every test so that they hold however it is started.
//
// LibTorch, OpenBLAS and gRPC are not instrumented: ThreadSanitizer sees their accesses but not
// their locks, so what comes from within them is left out.
//
// A test asks for more memory than there is: the sanitizers must refuse it as the system does.
//
// The sanitizers' own libraries look these up by name: they must be seen from there.
#define COHORT_SEEN __attribute__((visibility("default")))
extern "C" {

COHORT_SEEN const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:history_size=4:"
         "allocator_may_return_null=1";
}

// gRPC's memory is made and freed through its inline code too, which is instrumented in our
// callers.
COHORT_SEEN const char* __tsan_default_suppressions() {
  return "race:libgrpc\nrace:libgpr\nrace:libabsl\nrace:grpc_core::\nrace:grpc::\n";
}

COHORT_SEEN const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:detect_leaks=1:allocator_may_return_null=1";
}

// These leaks are LibTorch's or gRPC's own, named by the function that allocates: a library's name
// would also hide memory that we ask it for and lose. Only gRPC asks c-ares, whose functions have
// no names; a channel that ends while it looks up an address loses a text.
COHORT_SEEN const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

COHORT_SEEN const char* __ubsan_default_options() { return "print_stacktrace=1"; }

}  // extern "C"

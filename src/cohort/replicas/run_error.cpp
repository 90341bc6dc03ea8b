// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/run_error.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unwind.h>

#include <cctype>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/exception_context.h"
#include "cohort/strategy/replica_call.h"

namespace cohort::internal {
namespace {

thread_local std::optional<ThrowSite> last_site;

// "_ZN2at4_ops5addmm4callE…": the function that the dispatcher of LibTorch calls first.
std::string op_of(std::string_view symbol) {
  constexpr std::string_view kOps = "_ZN2at4_ops";
  if (!symbol.starts_with(kOps)) return {};
  symbol.remove_prefix(kOps.size());
  std::size_t length = 0;
  while (!symbol.empty() && std::isdigit(static_cast<unsigned char>(symbol.front())) != 0) {
    length = 10 * length + static_cast<std::size_t>(symbol.front() - '0');
    symbol.remove_prefix(1);
  }
  return std::string(symbol.substr(0, length));
}

struct FoundFrames {
  ThrowSite site;
  bool has_throw = false;    // what throws an exception, on behalf of its caller
  bool has_thrower = false;  // that caller
};

_Unwind_Reason_Code visit_thrown_frame(_Unwind_Context* context, void* data) {
  auto& found = *static_cast<FoundFrames*>(data);
  const auto address = static_cast<std::uintptr_t>(_Unwind_GetIP(context)) - 1;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_fname == nullptr)
    return _URC_NO_REASON;
  std::string_view file = info.dli_fname;
  file = file.substr(file.rfind('/') + 1);
  const std::string_view symbol = info.dli_sname == nullptr ? "" : info.dli_sname;
  // An exception that is thrown again, as by the backward pass, may be the user's.
  found.has_throw = found.has_throw || (symbol.find("cxa_throw") != std::string_view::npos &&
                                        function::is_runtime(file));
  if (found.has_throw && !found.has_thrower && !function::is_runtime(file)) {
    found.has_thrower = true;
    found.site.is_in_torch = file.starts_with("libtorch") || file.starts_with("libc10");
  }
  if (found.has_thrower) found.site.op = op_of(symbol);
  return found.site.op.empty() ? _URC_NO_REASON : _URC_END_OF_STACK;
}

std::exception_ptr described(const Error& error, const ThrowSite& site) {
  const bool is_unknown = error.code() == ErrorCode::unknown;
  const std::string op = site.op.empty() ? "" : "'" + site.op + "' failed: ";
  return std::make_exception_ptr(Error(is_unknown ? ErrorCode::invalid_argument : error.code(),
                                       "[strategy.run] " + op + error.message() + site.lines.text(),
                                       ErrorCause::application));
}

}  // namespace

std::exception_ptr error_of_replica(std::exception_ptr thrown) {
  const ThrowSite site = thrown_here();
  try {
    std::rethrow_exception(thrown);
  } catch (const Error&) {
    return thrown;
  } catch (const c10::Error&) {  // its what() would have a page of stack frames
    return described(current_error(), site);
  } catch (const std::exception&) {
    return site.is_in_torch ? described(current_error(), site) : thrown;
  } catch (...) {
    return thrown;
  }
}

void rethrow_of_only_replica(int first) {
  const std::exception_ptr thrown = std::current_exception();
  const std::exception_ptr error = error_of_replica(thrown);
  try {
    std::rethrow_exception(error);
  } catch (const Error& unnamed) {
    if (error == thrown) throw;
    throw Error(unnamed).during(RunArguments::text_of(0, first));
  } catch (...) {
    note_context(error, RunArguments::text_of(0, first));
    throw;
  }
}

ThrowSite thrown_here() {
  return last_site ? *std::exchange(last_site, std::nullopt) : ThrowSite{};
}

#if defined(__x86_64__)

extern "C" {

// The unwinder asks every frame, from the innermost on, whether it catches the exception, before it
// leaves any of them. This frame never does.
__attribute__((visibility("hidden"), used)) _Unwind_Reason_Code cohort_watch_personality(
    int /*version*/, _Unwind_Action actions, std::uint64_t /*type*/, _Unwind_Exception* /*thrown*/,
    _Unwind_Context* /*context*/) {
  if ((actions & _UA_SEARCH_PHASE) == 0) return _URC_CONTINUE_UNWIND;
  try {
    FoundFrames found;
    _Unwind_Backtrace(&visit_thrown_frame, &found);
    found.site.lines = function::UserLines::here();
    last_site = std::move(found.site);
  } catch (...) {
    last_site.reset();  // what is unknown must not replace the exception
  }
  return _URC_CONTINUE_UNWIND;
}

void cohort_call_watched(void (*body)(void*), void* argument);

}  // extern "C"

// A frame whose personality routine is the one above.
asm(R"(
  .pushsection .text
  .p2align 4
  .globl cohort_call_watched
  .hidden cohort_call_watched
  .type cohort_call_watched, @function
cohort_call_watched:
  .cfi_startproc
  .cfi_personality 0x1b, cohort_watch_personality
  subq $8, %rsp
  .cfi_def_cfa_offset 16
  movq %rdi, %rax
  movq %rsi, %rdi
  call *%rax
  addq $8, %rsp
  .cfi_def_cfa_offset 8
  ret
  .cfi_endproc
  .size cohort_call_watched, .-cohort_call_watched
  .popsection
)");

void call_watched(const std::function<void()>& body) {
  const auto call = [](void* given) { (*static_cast<const std::function<void()>*>(given))(); };
  cohort_call_watched(call, const_cast<std::function<void()>*>(&body));
}

#else

void call_watched(const std::function<void()>& body) { body(); }

#endif

}  // namespace cohort::internal

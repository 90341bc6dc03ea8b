// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/library_caller.h"

#include <dlfcn.h>
#include <unwind.h>

#include <cstdint>
#include <string>

namespace cohort::function {
namespace {

constexpr int kFramesLookedAt = 128;
// The largest number of frames from an operator's call to the exported function that makes it.
constexpr int kFramesInside = 6;

struct Search {
  std::string_view function;  // how a mangled name begins, or what it contains
  // Where the search begins: the operator's own call, and the inline function around it if the
  // compiler did not inline it. Empty: the whole stack is searched.
  std::string call;
  std::string wrapper;
  const void* library = nullptr;  // that of the call, once it is found
  int frames_inside = 0;
  int frames = 0;
  bool is_found = false;
};

// Continues the search with the next frame; false: it is over.
bool visit_frame_of(Search& search, const Dl_info& info, std::string_view name) {
  if (search.call.empty()) {
    search.is_found = name.find(search.function) != std::string_view::npos;
    return !search.is_found;
  }
  if (search.library == nullptr) {
    if (name.starts_with(search.call)) search.library = info.dli_fbase;
    return true;
  }
  if (name.starts_with(search.wrapper)) return true;
  search.is_found = name.starts_with(search.function);
  // There may be functions without names between an operator and an exported function of LibTorch.
  const bool is_inside = info.dli_fbase == search.library && ++search.frames_inside < kFramesInside;
  return !search.is_found && is_inside;
}

_Unwind_Reason_Code visit(_Unwind_Context* context, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (++search.frames > kFramesLookedAt) return _URC_END_OF_STACK;
  // The return address less one lies in the call itself.
  const auto address = static_cast<std::uintptr_t>(_Unwind_GetIP(context)) - 1;
  Dl_info info{};
  const bool is_known = dladdr(reinterpret_cast<void*>(address), &info) != 0;
  const std::string_view name = is_known && info.dli_sname != nullptr ? info.dli_sname : "";
  return visit_frame_of(search, info, name) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

bool is_found(Search search) noexcept {
  _Unwind_Backtrace(&visit, &search);
  return search.is_found;
}

}  // namespace

bool is_called_by(std::string_view op, std::string_view function) noexcept {
  const std::string name = std::to_string(op.size()) + std::string(op);
  return is_found(
      {.function = function, .call = "_ZN2at4_ops" + name + "4call", .wrapper = "_ZN2at" + name});
}

bool is_called_inside(std::string_view function) noexcept {
  return is_found({.function = function, .call = "", .wrapper = ""});
}

}  // namespace cohort::function

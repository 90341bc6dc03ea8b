// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/call_site.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>

#include "cohort/core/mutex.h"
#include "cohort/function/user_lines.h"

namespace cohort::function {
namespace {

using Frame = CallStack::Frame;

constexpr std::size_t kFramesMax = 96;
constexpr std::size_t kLinesMax = 3;

struct Walk {
  const void* outermost;
  std::vector<Frame>& frames;
};

// One source line of a frame; a frame has several where calls were inlined.
struct Place {
  std::string function;  // empty: not known
  std::string file;      // empty: not known
  std::string line;
};

std::string path_of(const Dl_info& info) {
  // The program's own path in dladdr is argv[0], which need not be a path.
  std::string name = info.dli_fname == nullptr ? "" : info.dli_fname;
  if (name.find(".so") != std::string::npos) return name;
  std::array<char, 4096> path{};
  ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : name;
}

bool is_library(const char* name) {
  std::string_view path = name == nullptr ? "" : name;
  std::string_view file = path.substr(path.rfind('/') + 1);
  for (std::string_view prefix : {"libtorch", "libc10", "libcohort.", "libc.so", "libc-", "libgomp",
                                  "libgtest", "libpthread"}) {
    if (file.starts_with(prefix)) return true;
  }
  return is_runtime(file);
}

_Unwind_Reason_Code visit_frame(_Unwind_Context* context, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  // The return address less one lies in the call itself.
  auto address = static_cast<std::uintptr_t>(_Unwind_GetIP(context)) - 1;
  Dl_info info{};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) != 0 &&
      map != nullptr && !is_library(info.dli_fname)) {
    // The stack grows downwards: callers of the first entry have higher frames.
    bool is_outside = _Unwind_GetCFA(context) > reinterpret_cast<std::uintptr_t>(walk.outermost);
    walk.frames.push_back({path_of(info), address - map->l_addr, is_outside});
  }
  return walk.frames.size() < kFramesMax ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// The folder of this library's own sources, as the compiler was given it.
std::string_view own_sources() {
  constexpr std::string_view kThisFile = "function/tracer/call_site.cpp";
  std::string_view path = __FILE__;
  return path.ends_with(kThisFile) ? path.substr(0, path.size() - kThisFile.size()) : "";
}

bool is_user_file(std::string_view file) {
  for (std::string_view part : {"/usr/include/", "/usr/lib/", "/include/ATen/", "/include/torch/",
                                "/include/c10/", "/include/c++/", "/include/cohort/"}) {
    if (file.find(part) != std::string_view::npos) return false;
  }
  // The library's tests count as user code.
  bool is_own = !own_sources().empty() && file.find(own_sources()) != std::string_view::npos;
  return !is_own || file.ends_with("_test.cpp") || file.ends_with("_bench.cpp");
}

// Whether a function without debug information may be the user's. Its return type may come first.
bool is_user_function(std::string_view function) {
  function = function.substr(0, function.find_first_of("(<"));
  function = function.substr(function.rfind(' ') + 1);
  // A program may contain the runtime (-static-libgcc, -static-libstdc++).
  for (std::string_view scope : {"cohort::", "at::", "c10::", "torch::", "std::", "_start",
                                 "_Unwind_", "__cxa_", "__gxx_", "__cxxabiv1::"}) {
    if (function.starts_with(scope)) return false;
  }
  return true;
}

std::string hexadecimal(std::uintptr_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

std::string read_all(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe &&
         std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) {
    text += buffer.data();
  }
  return text;
}

// Parses "FUNCTION at FILE:LINE", where "??", "0" and "?" stand for unknown parts. Without debug
// information the file is the compiled one, for example "unity_2_cxx.cxx:?".
Place place_of(const std::string& text) {
  Place place;
  std::size_t at = text.rfind(" at ");
  if (at == std::string::npos) return place;
  if (text.compare(0, 2, "??") != 0) place.function = text.substr(0, at);
  std::string where = text.substr(at + 4);
  where.erase(std::min(where.find(" (discriminator "), where.size()));
  std::size_t colon = where.rfind(':');
  if (colon == std::string::npos) return place;
  std::string line = where.substr(colon + 1);
  if (line.empty() || line == "?" || line == "0") return place;
  place.file = where.substr(0, colon);
  place.line = line;
  return place;
}

// The places of each frame out of the output of `addr2line -Cfpi`: a line for each frame, and one
// with a prefix for each call that was inlined there.
std::vector<std::vector<Place>> parse(const std::string& output, std::size_t frames) {
  constexpr std::string_view kInlined = " (inlined by) ";
  std::vector<std::vector<Place>> places;
  std::istringstream text(output);
  for (std::string line; std::getline(text, line);) {
    bool is_inlined = line.starts_with(kInlined);
    if (is_inlined) line.erase(0, kInlined.size());
    if (!is_inlined) places.emplace_back();
    if (!places.empty()) places.back().push_back(place_of(line));
  }
  places.resize(frames);
  return places;
}

// The places of `count` frames of one module, found by one process.
std::vector<std::vector<Place>> places_of(const Frame* frames, std::size_t count) {
  const std::string& module = frames->module;
  if (module.find('\'') != std::string::npos) return std::vector<std::vector<Place>>(count);
  std::string command = "addr2line -Cfpie '" + module + "'";
  for (std::size_t i = 0; i < count; ++i) command += " " + hexadecimal(frames[i].offset);
  return parse(read_all(command + " 2>/dev/null"), count);
}

// Adds the user's lines of one frame.
void append_lines(const Frame& frame, const std::vector<Place>& places,
                  std::vector<std::string>& lines) {
  bool has_file = false;
  for (const Place& place : places) {
    has_file = has_file || !place.file.empty();
    if (!place.file.empty() && is_user_file(place.file) && lines.size() < kLinesMax)
      lines.push_back(without_machinery(place.function) + " at " + place.file + ":" + place.line);
  }
  if (has_file || !frame.is_outside || !lines.empty()) return;
  std::string function = places.empty() ? "" : places.front().function;
  const std::string own = without_machinery(function);
  // A frame of another std::function does not show whether its function is the user's.
  if (own != "operator()") function = own;
  if (!function.empty() && !is_user_function(function)) return;
  lines.push_back(function + (function.empty() ? "" : " in ") + frame.module + "+" +
                  hexadecimal(frame.offset));
}

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

_Unwind_Reason_Code visit_library_frame(_Unwind_Context* context, void* data) {
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
  _Unwind_Backtrace(&visit_library_frame, &search);
  return search.is_found;
}

}  // namespace

bool is_runtime(std::string_view file) {
  for (std::string_view prefix :
       {"libstdc++", "libc++", "libgcc_s", "libunwind", "libasan", "libtsan", "libubsan"}) {
    if (file.starts_with(prefix)) return true;
  }
  return false;
}

std::string without_machinery(const std::string& function) {
  constexpr std::string_view kStep = "cohort::function::erase<";
  const std::size_t step = function.find(kStep);
  if (step != std::string::npos) {
    const std::size_t begin = step + kStep.size();
    std::size_t end = begin;
    for (int open = 1; end < function.size(); ++end) {
      open += function[end] == '<' ? 1 : function[end] == '>' ? -1 : 0;
      if (open == 0) return function.substr(begin, end - begin) + "::operator()";
    }
  }
  for (std::string_view machinery : {"std::_Function_handler<", "std::__invoke"}) {
    if (function.find(machinery) != std::string::npos) return "operator()";
  }
  return function;
}

CallStack CallStack::here(const void* outermost) noexcept {
  CallStack stack;
  try {
    Walk walk{outermost, stack.frames_};
    _Unwind_Backtrace(&visit_frame, &walk);
  } catch (const std::exception&) {
    // A missing call site must not hide the error that it belongs to.
  }
  return stack;
}

std::string CallStack::lines() const noexcept {
  try {
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < frames_.size() && lines.size() < kLinesMax;) {
      std::size_t end = begin;
      while (end < frames_.size() && frames_[end].module == frames_[begin].module) ++end;
      const auto places = places_of(&frames_[begin], end - begin);
      for (std::size_t i = begin; i < end; ++i) append_lines(frames_[i], places[i - begin], lines);
      begin = end;
    }
    std::string text;
    for (const std::string& line : lines) text += "\n    at " + line;
    return text;
  } catch (const std::exception&) {
    return {};
  }
}

std::string CallStack::key() const {
  std::string key;
  for (const Frame& frame : frames_) key += frame.module + "+" + hexadecimal(frame.offset) + " ";
  return key;
}

bool is_called_by(std::string_view op, std::string_view function) noexcept {
  const std::string name = std::to_string(op.size()) + std::string(op);
  return is_found(
      {.function = function, .call = "_ZN2at4_ops" + name + "4call", .wrapper = "_ZN2at" + name});
}

bool is_called_inside(std::string_view function) noexcept {
  return is_found({.function = function, .call = "", .wrapper = ""});
}

UserLines UserLines::here() noexcept {
  UserLines lines;
  try {
    lines.stack_ = std::make_shared<const CallStack>(CallStack::here(nullptr));
  } catch (const std::exception&) {
    // As in CallStack::here().
  }
  return lines;
}

// A program that tries again after an error gets the same one many times.
std::string UserLines::text() const noexcept {
  static Mutex mutex;
  static std::map<std::string, std::string> known;
  constexpr std::size_t kKnownMax = 256;
  if (stack_ == nullptr) return {};
  try {
    const std::string key = stack_->key();
    const Lock lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    if (known.size() >= kKnownMax) known.clear();
    return known.emplace(key, stack_->lines()).first->second;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace cohort::function

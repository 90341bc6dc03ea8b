// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/internal/tracer/call_site.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

namespace cohort::function {
namespace {

constexpr std::size_t kFramesMax = 96;
constexpr std::size_t kLinesMax = 3;

struct Frame {
  std::string module;
  std::uintptr_t offset = 0;
  // Called, directly or not, the tracer's first entry.
  bool is_outside = false;
};

struct Walk {
  const void* outermost;
  std::vector<Frame> frames;
};

std::string path_of(const Dl_info& info) {
  // The program's own path in dladdr is argv[0], which need not be a path.
  std::string name = info.dli_fname == nullptr ? "" : info.dli_fname;
  if (name.find(".so") != std::string::npos) return name;
  std::array<char, 4096> path{};
  ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : name;
}

bool is_library_of_torch(const char* name) {
  std::string_view path = name == nullptr ? "" : name;
  std::string_view file = path.substr(path.rfind('/') + 1);
  for (std::string_view prefix :
       {"libtorch", "libc10", "libc.so", "libc-", "libstdc++", "libgomp"}) {
    if (file.starts_with(prefix)) return true;
  }
  return false;
}

_Unwind_Reason_Code visit_frame(_Unwind_Context* context, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  // The return address less one lies in the call itself.
  auto address = static_cast<std::uintptr_t>(_Unwind_GetIP(context)) - 1;
  Dl_info info{};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) != 0 &&
      map != nullptr && !is_library_of_torch(info.dli_fname)) {
    // The stack grows downwards: callers of the first entry have higher frames.
    bool is_outside = _Unwind_GetCFA(context) > reinterpret_cast<std::uintptr_t>(walk.outermost);
    walk.frames.push_back({path_of(info), address - map->l_addr, is_outside});
  }
  return walk.frames.size() < kFramesMax ? _URC_NO_REASON : _URC_END_OF_STACK;
}

bool is_user_file(std::string_view file) {
  for (std::string_view part :
       {"??", " at :", "/ATen/", "/torch/", "/c10/", "/bits/", "/c++/", "/gtest/",
        "cohort/function/trace.cpp", "cohort/function/internal/"}) {
    if (file.find(part) != std::string_view::npos) return false;
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

// Lines of `addr2line -Cfpi`: "FUNCTION at FILE:LINE", inlined callers as " (inlined by) FUNCTION
// at FILE:LINE".
void append_lines(const std::string& output, std::vector<std::string>& lines) {
  std::istringstream text(output);
  for (std::string line; lines.size() < kLinesMax && std::getline(text, line);) {
    constexpr std::string_view kInlined = " (inlined by) ";
    if (line.starts_with(kInlined)) line.erase(0, kInlined.size());
    line.erase(std::min(line.find(" (discriminator "), line.size()));
    std::size_t at = line.rfind(" at ");
    if (at != std::string::npos && is_user_file(std::string_view(line).substr(at)))
      lines.push_back(line);
  }
}

// Runs of frames in one module share a process.
std::vector<std::string> source_lines(const std::vector<Frame>& frames) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < frames.size() && lines.size() < kLinesMax;) {
    const std::string& module = frames[begin].module;
    std::string command = "addr2line -Cfpie '";
    command += module;
    command += '\'';
    std::size_t end = begin;
    for (; end < frames.size() && frames[end].module == module; ++end) {
      command += " " + hexadecimal(frames[end].offset);
    }
    if (module.find('\'') == std::string::npos)
      append_lines(read_all(command + " 2>/dev/null"), lines);
    begin = end;
  }
  return lines;
}

}  // namespace

std::string call_site(const void* outermost) noexcept {
  try {
    Walk walk{outermost, {}};
    _Unwind_Backtrace(&visit_frame, &walk);
    std::string text;
    for (const std::string& line : source_lines(walk.frames)) text += "\n    at " + line;
    if (!text.empty()) return text;
    for (const Frame& frame : walk.frames) {
      if (frame.is_outside) return "\n    at " + frame.module + "+" + hexadecimal(frame.offset);
    }
  } catch (const std::exception&) {
    // A call site is a help, never a second error.
  }
  return {};
}

}  // namespace cohort::function

// SPDX-License-Identifier: Apache-2.0
// Functions that the fuzz targets share. Each *_fuzz.cpp defines LLVMFuzzerTestOneInput: any bytes
// must yield a right value or one of the errors that the parser promises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::fuzz {

// Aborts the process, by which a fuzz target reports a fault.
[[noreturn]] void found(std::string_view what);
inline void require(bool holds, std::string_view what) {
  if (!holds) found(what);
}

// Runs `work`; returns whether it threw no error. An error with another code than these is a fault.
template <class Work>
bool only_fails_with(std::initializer_list<ErrorCode> codes, Work work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    for (const ErrorCode code : codes) {
      if (error.code() == code) return false;
    }
    found(error.what());
  }
}

// Reads an input from front to back: first bytes that choose options, then the bytes to parse.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : bytes_(reinterpret_cast<const char*>(data), size) {}

  // The next byte; 0 at the end.
  std::uint8_t byte();
  // The next bytes, at most `count`.
  std::string_view take(std::size_t count);
  std::string_view rest() { return take(bytes_.size()); }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

// A temporary file of this process, which is reused for every input.
class ScratchFile {
 public:
  explicit ScratchFile(std::string_view name);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::string_view content) const;

 private:
  std::string path_;
};

// Computed bit by bit, so that it shares no code with the tested implementation.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace cohort::fuzz

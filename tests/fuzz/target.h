// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. Each *_fuzz.cpp defines LLVMFuzzerTestOneInput: any bytes must give
// a value or one of the errors that the parser promises, and what it gave must be right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::fuzz {

// Ends the process, which is how a fuzz target says that it found something.
[[noreturn]] void found(std::string_view what);
inline void require(bool holds, std::string_view what) {
  if (!holds) found(what);
}

// Runs `work`; an error with another code than these is something found. Whether there was none.
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

// An input from front to back: first the choices, then what is parsed.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : bytes_(reinterpret_cast<const char*>(data), size) {}

  // The next byte, 0 at the end.
  std::uint8_t byte();
  // Up to `count` bytes.
  std::string_view take(std::size_t count);
  std::string_view rest() { return take(bytes_.size()); }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

// A file of this process, the same for every input.
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

// Bit by bit, so that it shares nothing with what is tested.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace cohort::fuzz

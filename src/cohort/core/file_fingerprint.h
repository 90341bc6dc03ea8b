// SPDX-License-Identifier: Apache-2.0
// Tells whether a file is still the one that was read before, also on another host that has a copy
// of it (docs/decisions/0041-a-returning-worker-compares-its-files.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/core/export.h"

namespace cohort {

// A value type.
struct COHORT_API FileFingerprint {
  std::string path;         // as the pipeline names it; symbolic links are not resolved
  bool is_missing = false;  // there was no such file, or it could not be read
  std::uint64_t size_bytes = 0;
  // The time of the last change of the content, in nanoseconds since 1970. It decides nothing,
  // since an honest copy has another one.
  std::int64_t modified_ns = 0;
  // CRC-32C of the whole content of a file of at most 8 MiB, else of 16 blocks of 64 KiB that are
  // spread evenly, the first and the last one included. nullopt: the content was not read.
  std::optional<std::uint32_t> checksum = {};

  bool operator==(const FileFingerprint&) const = default;
};

// Converts a time that stat() returned to nanoseconds since 1970.
inline std::int64_t nanoseconds_of(const timespec& time) {
  constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
  return time.tv_sec * kNanosecondsPerSecond + std::int64_t{time.tv_nsec};
}
// Whether a fingerprint of a file of this size covers all of its bytes.
COHORT_API bool covers_whole_file(std::uint64_t size_bytes);
// Returns the fingerprint of the file at `found`, with `path` as its name. A file that cannot be
// read counts as missing: the source that reads it will throw the error.
COHORT_API FileFingerprint fingerprint_of(const std::string& path, const std::string& found);
// Returns the same without a checksum, which takes only one system call.
COHORT_API FileFingerprint size_fingerprint_of(const std::string& path, const std::string& found);
// Describes how the file differs, as "expected 40 bytes, got 52 bytes". Returns "" if the two
// fingerprints show no difference.
COHORT_API std::string difference(const FileFingerprint& before, const FileFingerprint& now);

}  // namespace cohort

// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/file_fingerprint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "cohort/core/crc32c.h"
#include "cohort/core/file_descriptor.h"

namespace cohort {
namespace {

constexpr std::uint64_t kWholeBytesMax = 8 << 20;
constexpr std::uint64_t kBlocks = 16;
constexpr std::uint64_t kBlockBytes = 64 << 10;

// Continues `sum` with `count` bytes from `offset` on; false if there are fewer. `buffer` has
// kBlockBytes.
bool add_to(std::uint32_t& sum, const FileDescriptor& file, std::vector<char>& buffer,
            std::uint64_t offset, std::uint64_t count) {
  while (count > 0) {
    const ssize_t got = ::pread(file.get(), buffer.data(), std::min(count, kBlockBytes),
                                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    sum = crc32c(std::string_view(buffer.data(), static_cast<std::size_t>(got)), sum);
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::uint64_t>(got);
  }
  return true;
}

std::optional<std::uint32_t> checksum_of(const FileDescriptor& file, std::uint64_t size) {
  std::uint32_t sum = 0;
  std::vector<char> buffer(kBlockBytes);
  if (covers_whole_file(size)) {
    return add_to(sum, file, buffer, 0, size) ? std::optional(sum) : std::nullopt;
  }
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::uint64_t offset = (size - kBlockBytes) / (kBlocks - 1) * i;
    const bool is_last = i + 1 == kBlocks;
    if (!add_to(sum, file, buffer, is_last ? size - kBlockBytes : offset, kBlockBytes))
      return std::nullopt;
  }
  return sum;
}

FileFingerprint of_status(const std::string& path, const struct stat& status) {
  return {.path = path,
          .size_bytes = static_cast<std::uint64_t>(status.st_size),
          .modified_ns = nanoseconds_of(status.st_mtim)};
}

std::string state_of(const FileFingerprint& file) {
  return file.is_missing ? "no file that can be read" : std::to_string(file.size_bytes) + " bytes";
}

}  // namespace

bool covers_whole_file(std::uint64_t size_bytes) { return size_bytes <= kWholeBytesMax; }

FileFingerprint fingerprint_of(const std::string& path, const std::string& found) {
  // O_NONBLOCK, so that opening a pipe does not wait for a writer.
  const FileDescriptor file(::open(found.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return {.path = path, .is_missing = true};
  FileFingerprint fingerprint = of_status(path, status);
  fingerprint.checksum = checksum_of(file, fingerprint.size_bytes);
  return fingerprint;
}

FileFingerprint size_fingerprint_of(const std::string& path, const std::string& found) {
  struct stat status {};
  if (::stat(found.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    return {.path = path, .is_missing = true};
  return of_status(path, status);
}

std::string difference(const FileFingerprint& before, const FileFingerprint& now) {
  if (before.is_missing != now.is_missing || before.size_bytes != now.size_bytes)
    return "expected " + state_of(before) + ", got " + state_of(now);
  if (before.checksum && now.checksum && before.checksum != now.checksum)
    return "expected the same content, got other bytes in a file of the same size, " +
           state_of(now);
  return "";
}

}  // namespace cohort

// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/write_behind.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace cohort {
namespace {

// Smaller ones are not worth a call of the system.
constexpr std::uint64_t kRangeBytes = std::uint64_t{1} << 20;
constexpr std::size_t kWriteBytesMax = std::size_t{4} << 20;
// So much keeps a disk busy.
constexpr std::uint64_t kBegunBytesMax = std::uint64_t{32} << 20;

// Not every file system can do it; then fsync() does all.
bool is_of_the_disk(int code) {
  return code != EINVAL && code != ENOSYS && code != EPERM && code != ESPIPE && code != EOPNOTSUPP;
}

int sync_range(int file, std::uint64_t offset, std::uint64_t bytes, unsigned flags) {
  while (::sync_file_range(file, static_cast<off64_t>(offset), static_cast<off64_t>(bytes),
                           flags) != 0) {
    if (errno != EINTR) return is_of_the_disk(errno) ? errno : 0;
  }
  return 0;
}

}  // namespace

int WriteBehind::write(int file, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), kWriteBytesMax);
    const ssize_t written = ::pwrite(file, bytes.data(), size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    const auto done = static_cast<std::size_t>(written);
    if (const int code = note_written(file, {offset, done})) return code;
    offset += done;
    bytes = bytes.subspan(done);
  }
  return 0;
}

int WriteBehind::note_written(int file, Range range) {
  if (range.offset == last_.offset + last_.bytes) {
    last_.bytes += range.bytes;
  } else {
    last_ = range;
  }
  if (last_.bytes < kRangeBytes) return 0;
  if (const int code = sync_range(file, last_.offset, last_.bytes, SYNC_FILE_RANGE_WRITE))
    return code;
  begun_.push_back(last_);
  begun_bytes_ += last_.bytes;
  last_ = {last_.offset + last_.bytes, 0};
  while (begun_bytes_ > kBegunBytesMax) {
    const Range& first = begun_.front();
    constexpr unsigned kWait =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (const int code = sync_range(file, first.offset, first.bytes, kWait)) return code;
    (void)::posix_fadvise(file, static_cast<off_t>(first.offset), static_cast<off_t>(first.bytes),
                          POSIX_FADV_DONTNEED);
    begun_bytes_ -= first.bytes;
    begun_.pop_front();
  }
  return 0;
}

}  // namespace cohort

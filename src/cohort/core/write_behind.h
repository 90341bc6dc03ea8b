// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

namespace cohort {

// Writes a large file without filling the system's memory: the disk begins with bytes soon after
// they were written, and when it has them, the system forgets them. Otherwise a file of gigabytes
// displaces what is read again and again, and each of its pages is memory that has to be found.
// Thread-compatible.
class WriteBehind {
 public:
  // May wait until the disk has bytes of earlier calls. Returns 0, or an errno: also that of a disk
  // that has refused some, which fsync() does not report again.
  [[nodiscard]] int write(int file, std::uint64_t offset, std::span<const std::byte> bytes);

 private:
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  int note_written(int file, Range range);

  Range last_;  // not begun yet
  std::deque<Range> begun_;
  std::uint64_t begun_bytes_ = 0;
};

}  // namespace cohort

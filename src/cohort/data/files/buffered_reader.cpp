// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/buffered_reader.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/files/copy_bytes.h"

namespace cohort::data {
namespace {

constexpr std::int64_t kBufferBytesMin = 4 << 10;
constexpr std::int64_t kBufferBytesMax = 64 << 20;
// A byte has the same offset within a page in the buffer as in the file, since the operating system
// then copies several times faster.
constexpr std::size_t kPageBytes = 4 << 10;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

void BufferedReader::Free::operator()(char* buffer) const {
  ::operator delete[](buffer, std::align_val_t(kPageBytes));
}

BufferedReader::BufferedReader(std::unique_ptr<FileStream> stream, std::int64_t buffer_bytes)
    : stream_(std::move(stream)),
      capacity_(whole_pages(
          static_cast<std::size_t>(std::clamp(buffer_bytes, kBufferBytesMin, kBufferBytesMax)))) {}

void BufferedReader::make_room(std::size_t count) {
  const auto kept = static_cast<std::size_t>(end_ - begin_);
  // A buffer that is full is doubled, however little more is asked for, so that the bytes of a long
  // value are copied a constant number of times. `count` may come from a damaged file, so the
  // buffer does not grow to it at once.
  const bool is_full = count > capacity_ && 2 * kept > capacity_;
  const std::size_t wanted = is_full ? whole_pages(2 * kept) : capacity_;
  Buffer grown;
  if (!buffer_ || wanted > capacity_) {
    const auto page = std::align_val_t(kPageBytes);
    grown.reset(static_cast<char*>(::operator new[](wanted + kPageBytes, page)));
  }
  char* to = (grown ? grown : buffer_).get() + offset() % kPageBytes;
  if (to != begin_) {
    copy_forwards(begin_, kept, to);
    moved_bytes_ += kept;
  }
  if (grown) {
    buffer_ = std::move(grown);
    capacity_ = wanted;
  }
  front_ = begin_ = to;
  end_ = to + kept;
}

void BufferedReader::fill(std::size_t count) {
  while (static_cast<std::size_t>(end_ - begin_) < count) {
    make_room(count);
    const auto used = static_cast<std::size_t>(end_ - buffer_.get());
    const std::size_t room = capacity_ + kPageBytes - used;
    const std::size_t got = stream_->read({buffer_.get() + used, room});
    if (got == 0) return;
    end_ += got;
    end_offset_ += got;
  }
}

void BufferedReader::check_is_text(const std::string& path, std::string_view op) {
  const std::string remedy = compression_remedy(peek(1));
  COHORT_CHECK(remedy.empty(), ErrorCode::invalid_argument, "[data.", op, "] expected text in '",
               path, "', got packed bytes", remedy);
}

std::uint64_t BufferedReader::skip(std::uint64_t count) {
  const auto here = static_cast<std::uint64_t>(end_ - begin_);
  if (count <= here) {
    advance(count);
    return count;
  }
  if (const auto size = stream_->size()) {
    const std::uint64_t from = offset();
    const std::uint64_t to = std::max(from, from + std::min(count, *size - std::min(*size, from)));
    seek(to);
    return to - from;
  }
  std::uint64_t skipped = 0;
  while (skipped < count) {
    const std::size_t got = peek(1).size();
    if (got == 0) break;
    const std::uint64_t step = std::min<std::uint64_t>(got, count - skipped);
    advance(step);
    skipped += step;
  }
  return skipped;
}

void BufferedReader::seek(std::uint64_t offset) {
  const std::uint64_t buffered_from = end_offset_ - static_cast<std::uint64_t>(end_ - front_);
  if (buffer_ && offset >= buffered_from && offset <= end_offset_) {
    begin_ = end_ - (end_offset_ - offset);
    return;
  }
  stream_->seek(offset);
  front_ = begin_ = end_ = buffer_.get();
  end_offset_ = offset;
}

}  // namespace cohort::data

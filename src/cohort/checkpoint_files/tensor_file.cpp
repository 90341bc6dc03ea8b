// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/tensor_file.h"

#include <ATen/core/TensorBody.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "cohort/core/atomic_file.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"
#include "cohort/core/system_error.h"
#include "cohort/variable/safetensors.h"
#include "cohort/variable/safetensors_file.h"

namespace cohort::checkpoint {
namespace {

constexpr std::uint64_t kSizeBytes = 8;  // of the size of the header
constexpr std::uint64_t kAlignment = 8;
constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

std::uint64_t row_bytes_of(const TensorSpec& spec) {
  if (spec.sizes->empty()) return static_cast<std::uint64_t>(spec.byte_count());
  TensorSpec row = spec;
  row.sizes->front() = 1;
  return static_cast<std::uint64_t>(row.byte_count());
}

}  // namespace

TensorFile::TensorFile(std::string path, std::uint64_t header_room)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)),
      room_((header_room + kAlignment - 1) / kAlignment * kAlignment) {
  if (!file_.is_open()) fail(errno);
}

void TensorFile::fail(int code) const {
  internal::throw_error(code_of_write_errno(code), "[checkpoint.write] expected to write file '",
                        path_, "', got: ", text_of_errno(code));
}

std::size_t TensorFile::add(std::string name, const TensorSpec& spec) {
  COHORT_ASSERT(tensors_.empty() || !tensors_.front().is_growing);
  tensors_.push_back({.written = {std::move(name), spec, {}}, .begin = end_});
  end_ += static_cast<std::uint64_t>(spec.byte_count());
  return tensors_.size() - 1;
}

std::size_t TensorFile::add_growing(std::string name, TensorSpec spec) {
  COHORT_ASSERT(tensors_.empty() && !spec.sizes->empty());
  spec.sizes->front() = 0;
  tensors_.push_back({.written = {std::move(name), std::move(spec), {}}, .is_growing = true});
  return 0;
}

void TensorFile::write(std::size_t tensor, std::int64_t first_row, const at::Tensor& rows) {
  Placed& placed = tensors_.at(tensor);
  TensorSpec& spec = placed.written.spec;
  COHORT_ASSERT(rows.scalar_type() == spec.dtype && rows.is_contiguous() && rows.is_cpu());
  const std::int64_t count = spec.sizes->empty() ? 1 : rows.size(0);
  if (placed.is_growing) {
    COHORT_ASSERT(first_row == spec.sizes->front());
    spec.sizes->front() += count;
  }
  const std::uint64_t row_bytes = row_bytes_of(spec);
  COHORT_ASSERT(rows.nbytes() == row_bytes * static_cast<std::uint64_t>(count));
  // A growing tensor belongs to others that grow alike: their parts have the same rows.
  const std::int64_t rows_max =
      placed.is_growing || row_bytes == 0
          ? count
          : std::max<std::int64_t>(1, static_cast<std::int64_t>(kPartBytesMax / row_bytes));
  const std::span<const std::byte> bytes = variable::bytes_of(rows);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t part = std::min(rows_max, count - done);
    const auto of_part = bytes.subspan(static_cast<std::size_t>(done) * row_bytes,
                                       static_cast<std::size_t>(part) * row_bytes);
    const std::int64_t row = first_row + done;
    write_bytes(kSizeBytes + room_ + placed.begin + static_cast<std::uint64_t>(row) * row_bytes,
                of_part);
    placed.written.parts.push_back({row, part, crc32c(of_part)});
    done += part;
  }
  if (placed.is_growing) end_ += rows.nbytes();
}

void TensorFile::write_bytes(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (const int code = behind_.write(file_.get(), offset, bytes)) fail(code);
}

// Backwards, since the ranges overlap.
void TensorFile::move_data(std::uint64_t room) {
  std::vector<std::byte> buffer(kCopyBytes);
  std::uint64_t left = end_;
  const std::uint64_t from = kSizeBytes + room_;
  while (left > 0) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size()));
    left -= size;
    std::size_t got = 0;
    while (got < size) {
      const ssize_t read = ::pread(file_.get(), buffer.data() + got, size - got,
                                   static_cast<off_t>(from + left + got));
      if (read < 0 && errno == EINTR) continue;
      if (read <= 0) fail(read < 0 ? errno : EIO);
      got += static_cast<std::size_t>(read);
    }
    write_bytes(kSizeBytes + room + left, std::span(buffer).first(size));
  }
  room_ = room;
}

void TensorFile::finish() {
  std::vector<std::pair<std::string, TensorSpec>> in_order;
  for (const Placed& placed : tensors_)
    in_order.emplace_back(placed.written.name, placed.written.spec);
  std::string text = variable::header_text(in_order);
  if (text.size() > room_) move_data(text.size());
  text.append(room_ - text.size(), ' ');
  const std::uint64_t size = text.size();
  std::string header(reinterpret_cast<const char*>(&size), kSizeBytes);
  header += text;
  write_bytes(0, std::as_bytes(std::span(header)));
  if (::fsync(file_.get()) != 0) fail(errno);
  file_ = FileDescriptor();
}

std::vector<TensorFile::Written> TensorFile::take_written() {
  std::vector<Written> all;
  for (Placed& placed : tensors_) {
    std::ranges::sort(placed.written.parts, {}, &PartEntry::first_row);
    all.push_back(std::move(placed.written));
  }
  tensors_.clear();
  return all;
}

}  // namespace cohort::checkpoint
